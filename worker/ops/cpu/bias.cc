#include <vector>

#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

template <typename T>
struct AddRow {
  SHOAL_INLINE void Run(const T* bias, int64_t columns, T* y) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(Load(y + j) + Load(bias + j), y + j);
    }
  }
};

template <typename T>
struct ScaleRow {
  SHOAL_INLINE void Run(float factor, int64_t columns, T* x) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(factor * Load(x + j), x + j);
    }
  }
};

template <typename T>
struct SumRow {
  SHOAL_INLINE void Run(const T* x, int64_t columns, float* sums) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      sums[j] += Load(x + j);
    }
  }
};

// Columns per range. Each range sums over all tokens in order, whatever the number of threads.
constexpr int64_t kColumnsPerRange = 64;

}  // namespace

void AddBias(Context& context, ConstVector bias, Matrix y) {
  SHOAL_CHECK(bias.count == y.columns && bias.dtype == y.dtype);
  WithType(y.dtype, [&]<typename T>() {
    ForRows(context, y.rows, y.columns, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        Dispatch<AddRow<T>>(static_cast<const T*>(bias.data), y.columns, y.row<T>(t));
      }
    });
  });
}

void Scale(Context& context, float factor, Matrix x) {
  WithType(x.dtype, [&]<typename T>() {
    ForRows(context, x.rows, x.columns, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        Dispatch<ScaleRow<T>>(factor, x.columns, x.row<T>(t));
      }
    });
  });
}

void AddColumnSums(Context& context, ConstMatrix x, float* sums) {
  WithType(x.dtype, [&]<typename T>() {
    context.pool.ParallelFor(x.columns, kColumnsPerRange, [&](int64_t begin, int64_t end) {
      std::vector<float> of_range(static_cast<size_t>(end - begin), 0.0f);
      for (int64_t t = 0; t < x.rows; ++t) {
        Dispatch<SumRow<T>>(x.row<T>(t) + begin, end - begin, of_range.data());
      }
      for (int64_t j = begin; j < end; ++j) {
        sums[j] += of_range[static_cast<size_t>(j - begin)];
      }
    });
  });
}

}  // namespace shoal::worker::cpu
