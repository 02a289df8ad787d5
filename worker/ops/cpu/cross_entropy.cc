#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"

namespace shoal::worker::cpu {
namespace {

// Replaces logits with exp(logits - max); *log_sum = log(sum(exp(logits))),
// *inverse_sum = 1 / sum(exp(logits - max)).
struct ExponentialsRow {
  SHOAL_INLINE void Run(float* logits, int64_t columns, float* log_sum, float* inverse_sum) {
    float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < columns; ++j) {
      largest = logits[j] > largest ? logits[j] : largest;
    }
    const float sum = SumOf(columns, [=](int64_t j) SHOAL_INLINE_LAMBDA {
      const float e = Exp(logits[j] - largest);
      logits[j] = e;
      return e;
    });
    *log_sum = largest + std::log(sum);
    *inverse_sum = 1.0f / sum;
  }
};

struct CapRow {
  SHOAL_INLINE void Run(float* logits, int64_t columns, float cap) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      logits[j] = SoftCap(logits[j], cap);
    }
  }
};

// Multiplies gradients of capped logits by the cap's slope.
struct SlopeRow {
  SHOAL_INLINE void Run(const float* capped, int64_t columns, float cap, float* gradients) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      gradients[j] *= SoftCapSlope(capped[j], cap);
    }
  }
};

template <typename T>
struct ScaleRow {
  SHOAL_INLINE void Run(const float* in, int64_t columns, float factor, T* out) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Store(in[j] * factor, out + j);
    }
  }
};

// One row: returns its loss, and overwrites `gradients` (which may be the row) if there are any.
// `capped` is scratch.
template <typename T>
double RunRow(float* row, int64_t columns, int32_t label, float scale, float softcap,
              std::vector<float>& capped, T* gradients) {
  if (softcap > 0) {
    Dispatch<CapRow>(row, columns, softcap);
    if (gradients != nullptr) {
      capped.assign(row, row + columns);
    }
  }
  const float chosen = row[label];
  float log_sum = 0;
  float inverse_sum = 0;
  Dispatch<ExponentialsRow>(row, columns, &log_sum, &inverse_sum);
  if (gradients != nullptr) {
    float of_label = (row[label] * inverse_sum - 1.0f) * scale;
    if (softcap > 0) {
      Dispatch<SlopeRow>(static_cast<const float*>(capped.data()), columns, softcap, row);
      of_label *= SoftCapSlope(chosen, softcap);
    }
    Dispatch<ScaleRow<T>>(static_cast<const float*>(row), columns, inverse_sum * scale, gradients);
    Store(of_label, gradients + label);
  }
  return static_cast<double>(log_sum) - static_cast<double>(chosen);
}

}  // namespace

void SoftmaxCrossEntropy(Context& context, Matrix logits, const LabelledRows& rows, float scale,
                         float softcap, Matrix d_logits, const LossOut& loss) {
  const int64_t count = rows.count;
  const bool wants_gradient = d_logits.data != nullptr;
  SHOAL_CHECK(logits.dtype == DType::kF32 && count <= logits.rows);
  SHOAL_CHECK(!wants_gradient ||
              (d_logits.rows == logits.rows && d_logits.columns == logits.columns));
  std::vector<double> losses(static_cast<size_t>(count));
  WithType(wants_gradient ? d_logits.dtype : DType::kF32, [&]<typename T>() {
    ForRows(context, wants_gradient ? logits.rows : count, 4 * logits.columns,
            [&](int64_t begin, int64_t end) {
              std::vector<float> capped;
              for (int64_t i = begin; i < end; ++i) {
                if (i >= count) {
                  std::memset(d_logits.Rows(i, 1).data, 0,
                              static_cast<size_t>(logits.columns) * sizeof(T));
                  continue;
                }
                losses[static_cast<size_t>(i)] = RunRow(
                    logits.row<float>(i), logits.columns, rows.labels[i], scale * rows.weights[i],
                    softcap, capped, wants_gradient ? d_logits.row<T>(i) : nullptr);
              }
            });
  });
  for (int64_t i = 0; i < count; ++i) {
    const double of_row = losses[static_cast<size_t>(i)];
    *loss.sum += static_cast<double>(rows.weights[i]) * of_row;
    if (loss.log_probabilities != nullptr) {
      loss.log_probabilities[i] = static_cast<float>(-of_row);
    }
  }
}

}  // namespace shoal::worker::cpu
