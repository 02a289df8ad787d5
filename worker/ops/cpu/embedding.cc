#include <cmath>
#include <cstring>

#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

template <typename T>
struct ScaledRow {
  SHOAL_INLINE void Run(const T* from, int64_t columns, float scale, T* to) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(Load(from + j) * scale, to + j);
    }
  }
};

template <typename T>
struct AddRow {
  SHOAL_INLINE void Run(const T* from, int64_t columns, float scale, float* to) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      to[j] = std::fma(Load(from + j), scale, to[j]);
    }
  }
};

// Threads take ranges of columns, so that the rows of one id are added in the order of tokens.
constexpr int64_t kColumnsPerRange = 64;

}  // namespace

void EmbeddingForward(Context& context, const int32_t* tokens, int64_t token_count,
                      ConstMatrix table, float scale, Matrix out) {
  SHOAL_CHECK(token_count <= out.rows && table.columns == out.columns && table.dtype == out.dtype);
  const auto row_bytes = static_cast<size_t>(out.columns * SizeOf(out.dtype));
  WithType(out.dtype, [&]<typename T>() {
    ForRows(context, out.rows, out.columns, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        if (t >= token_count) {
          std::memset(out.Rows(t, 1).data, 0, row_bytes);
        } else if (scale == 1) {
          std::memcpy(out.Rows(t, 1).data, table.Rows(tokens[t], 1).data, row_bytes);
        } else {
          Dispatch<ScaledRow<T>>(table.row<T>(tokens[t]), out.columns, scale, out.row<T>(t));
        }
      }
    });
  });
}

void EmbeddingBackward(Context& context, const int32_t* tokens, int64_t token_count,
                       ConstMatrix d_out, float scale, Matrix d_table) {
  SHOAL_CHECK(token_count <= d_out.rows && d_table.columns == d_out.columns &&
              d_table.dtype == DType::kF32);
  WithType(d_out.dtype, [&]<typename T>() {
    context.pool.ParallelFor(d_out.columns, kColumnsPerRange, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < token_count; ++t) {
        Dispatch<AddRow<T>>(d_out.row<T>(t) + begin, end - begin, scale,
                            d_table.row<float>(tokens[t]) + begin);
      }
    });
  });
}

}  // namespace shoal::worker::cpu
