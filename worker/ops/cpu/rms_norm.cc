#include <algorithm>
#include <cmath>

#include "core/plan/memory/norm_partials.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

// One row, or a part of it that is normed by itself: [columns].
template <typename T>
struct ForwardRow {
  SHOAL_INLINE void Run(const T* x, const T* weight, float offset, int64_t columns, float epsilon,
                        const T* residual, T* y, float* inverse_rms) {
    const float squares = SumOf(columns, [=](int64_t j) SHOAL_INLINE_LAMBDA {
      const float value = Load(x + j);
      return value * value;
    });
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(columns) + epsilon);
    *inverse_rms = inverse;
    if (residual == nullptr) {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        Store(Load(x + j) * inverse * (Load(weight + j) + offset), y + j);
      }
      return;
    }
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(Load(residual + j) + Load(x + j) * inverse * (Load(weight + j) + offset), y + j);
    }
  }
};

// d_x = r * (d_y * w - x * r^2 * mean(d_y * w * x)) with r = inverse_rms and w the weight with its
// offset.
template <typename T>
struct BackwardInputRow {
  SHOAL_INLINE void Run(const T* d_y, const T* x, const T* weight, float offset, int64_t columns,
                        float inverse, const T* residual, T* d_x) {
    const float dot = SumOf(columns, [=](int64_t j) SHOAL_INLINE_LAMBDA {
      return Load(d_y + j) * (Load(weight + j) + offset) * Load(x + j);
    });
    const float scale = dot / static_cast<float>(columns) * inverse * inverse * inverse;
    if (residual == nullptr) {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        Store(Load(d_y + j) * (Load(weight + j) + offset) * inverse - Load(x + j) * scale, d_x + j);
      }
      return;
    }
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(Load(residual + j) +
                (Load(d_y + j) * (Load(weight + j) + offset) * inverse - Load(x + j) * scale),
            d_x + j);
    }
  }
};

template <typename T>
struct BackwardWeightRow {
  SHOAL_INLINE void Run(const T* d_y, const T* x, int64_t columns, float inverse, float* d_weight) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      d_weight[j] = std::fma(Load(d_y + j) * inverse, Load(x + j), d_weight[j]);
    }
  }
};

}  // namespace

void RmsNormForward(Context& context, ConstMatrix x, const NormWeight& weight, double epsilon,
                    ConstMatrix residual, Matrix y, float* inverse_rms) {
  SHOAL_CHECK(SameShape(x, y) && x.columns % weight.count == 0 && weight.dtype == x.dtype);
  SHOAL_CHECK(residual.data == nullptr || SameShape(residual, x));
  const int64_t parts = x.columns / weight.count;
  WithType(x.dtype, [&]<typename T>() {
    ForRows(context, x.rows, x.columns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * parts; i < end * parts; ++i) {
        const int64_t t = i / parts;
        const int64_t column = i % parts * weight.count;
        const T* residual_part = residual.data == nullptr ? nullptr : residual.row<T>(t) + column;
        Dispatch<ForwardRow<T>>(x.row<T>(t) + column, static_cast<const T*>(weight.data),
                                weight.offset, weight.count, static_cast<float>(epsilon),
                                residual_part, y.row<T>(t) + column, inverse_rms + i);
      }
    });
  });
}

void RmsNormBackward(Context& context, ConstMatrix d_y, ConstMatrix x, const NormWeight& weight,
                     const float* inverse_rms, ConstMatrix residual, Matrix d_x, Matrix d_weights) {
  SHOAL_CHECK(SameShape(d_y, x) && SameShape(x, d_x) && x.columns % weight.count == 0 &&
              weight.dtype == x.dtype);
  SHOAL_CHECK(residual.data == nullptr || SameShape(residual, x));
  SHOAL_CHECK(d_weights.rows == plan::NormPartials(x.rows) && d_weights.columns == weight.count &&
              d_weights.dtype == DType::kF32 && d_weights.stride == weight.count);
  const int64_t parts = x.columns / weight.count;
  const int64_t each = plan::RowsPerNormPartial(x.rows) * parts;
  WithType(x.dtype, [&]<typename T>() {
    context.pool.ParallelFor(d_weights.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t partial = begin; partial < end; ++partial) {
        auto* const sums = d_weights.row<float>(partial);
        std::fill_n(sums, weight.count, 0.0f);
        const int64_t last = std::min(x.rows * parts, (partial + 1) * each);
        for (int64_t i = partial * each; i < last; ++i) {
          const int64_t t = i / parts;
          const int64_t column = i % parts * weight.count;
          const T* const d_y_part = d_y.row<T>(t) + column;
          const T* const x_part = x.row<T>(t) + column;
          // Before d_x, which may be written over d_y.
          Dispatch<BackwardWeightRow<T>>(d_y_part, x_part, weight.count, inverse_rms[i], sums);
          const T* residual_part = residual.data == nullptr ? nullptr : residual.row<T>(t) + column;
          Dispatch<BackwardInputRow<T>>(d_y_part, x_part, static_cast<const T*>(weight.data),
                                        weight.offset, weight.count, inverse_rms[i], residual_part,
                                        d_x.row<T>(t) + column);
        }
      }
    });
  });
}

}  // namespace shoal::worker::cpu
