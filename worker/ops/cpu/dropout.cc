#include <algorithm>
#include <cmath>
#include <limits>

#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/cpu/simd.h"
#include "worker/ops/philox.h"

namespace shoal::worker::cpu {
namespace {

constexpr int64_t kWords = 4;    // of one counter
constexpr int64_t kBlocks = 64;  // counters at a time
constexpr uint32_t kMatrixShift = 16;

struct Threshold {
  uint32_t least;  // word that is kept
  float scale;     // of what is kept
};

Threshold ThresholdOf(double probability) {
  constexpr double kMost = std::numeric_limits<uint32_t>::max();
  return {static_cast<uint32_t>(std::min(kMost, std::round(std::ldexp(probability, 32)))),
          static_cast<float>(1 / (1 - probability))};
}

// y[columns] = residual + what is kept of x; `words` is scratch of kBlocks counters.
template <typename T, typename R>
struct DropRow {
  SHOAL_INLINE void Run(const T* x, PhiloxWords counter, uint64_t seed, Threshold threshold,
                        const R* residual, int64_t columns, T* y) {
    alignas(64) uint32_t words[kWords * kBlocks];
    for (int64_t first = 0; first < columns; first += kWords * kBlocks) {
      const int64_t count = std::min(columns - first, kWords * kBlocks);
      const auto block = static_cast<uint32_t>(first / kWords);
      for (int64_t i = 0; i < (count + kWords - 1) / kWords; ++i) {
        PhiloxWords at = counter;
        at[3] += block + static_cast<uint32_t>(i);
        const PhiloxWords made = Philox4x32(at, seed);
        std::copy(made.begin(), made.end(), words + kWords * i);
      }
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        const float kept =
            words[j] < threshold.least ? 0.0F : Load(x + first + j) * threshold.scale;
        Store(residual == nullptr ? kept : Load(residual + first + j) + kept, y + first + j);
      }
    }
  }
};

}  // namespace

void Dropout(Context& context, ConstMatrix x, const DropoutMask& mask, ConstMatrix residual,
             Matrix y) {
  SHOAL_CHECK(SameShape(x, y) && x.rows == static_cast<int64_t>(mask.rows.size()));
  SHOAL_CHECK(mask.probability >= 0 && mask.probability < 1);
  SHOAL_CHECK(mask.matrix < 1U << kMatrixShift && x.columns <= kWords << kMatrixShift);
  const bool adds = residual.data != nullptr;
  SHOAL_CHECK(!adds || (residual.rows == x.rows && residual.columns == x.columns));
  const Threshold threshold = ThresholdOf(mask.probability);
  WithType(x.dtype, [&]<typename T>() {
    WithType(residual.dtype, [&]<typename R>() {
      ForRows(context, x.rows, x.columns, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const DropoutRow& row = mask.rows[static_cast<size_t>(t)];
          Dispatch<DropRow<T, R>>(
              x.row<T>(t),
              PhiloxWords{mask.step, row.sample, row.position, mask.matrix << kMatrixShift},
              mask.seed, threshold, adds ? residual.row<R>(t) : nullptr, x.columns, y.row<T>(t));
        }
      });
    });
  });
}

}  // namespace shoal::worker::cpu
