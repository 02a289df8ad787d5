#include "server/store/accumulate.h"

#include <bit>
#include <cmath>

namespace shoal::server {
namespace {

SHOAL_INLINE float ToFloat(float value) { return value; }
SHOAL_INLINE float ToFloat(BFloat16 value) { return static_cast<float>(value); }

struct Set {
  template <typename T>
  SHOAL_INLINE void Run(const T* __restrict gradient, float* __restrict accumulator,
                        int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      accumulator[i] = 0.0f + ToFloat(gradient[i]);
    }
  }
};

struct Add {
  template <typename T>
  SHOAL_INLINE void Run(const T* __restrict gradient, float* __restrict accumulator,
                        int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      accumulator[i] += ToFloat(gradient[i]);
    }
  }
};

// 1.5 x 2^52: adding it to a double of magnitude below 2^51 leaves the value, rounded to an
// integer, in the low bits. AVX2 needs it, as it has no conversion to 64-bit integers, and every
// width uses it.
constexpr double kRounder = 0x1.8p52;

SHOAL_INLINE int64_t RoundSmall(double value) {
  return std::bit_cast<int64_t>(value + kRounder) - std::bit_cast<int64_t>(kRounder);
}

// Returns round(value x 2^40) for |value| <= 2^20, exactly: the product may need 61 bits, so the
// part above 2^-20 is converted first.
SHOAL_INLINE int64_t ToFixed(float value) {
  const double wide = static_cast<double>(value);
  const double shifted = wide * 0x1p20 + kRounder;
  const int64_t high = std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(kRounder);
  const double rest = wide - (shifted - kRounder) * 0x1p-20;  // exact, within +-2^-21
  return high * (int64_t{1} << 20) + RoundSmall(rest * 0x1p40);
}

struct AddExact {
  template <typename T>
  SHOAL_INLINE int64_t Run(const T* __restrict gradient, int64_t* __restrict accumulator,
                           int64_t count) {
    int64_t refused = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float value = ToFloat(gradient[i]);
      // False for NaN.
      const bool in_range = std::fabs(value) <= kExactMaxElement;
      const int64_t before = accumulator[i];
      // Below 2^62 + 2^60: cannot overflow.
      const int64_t after = before + ToFixed(in_range ? value : 0.0f);
      const bool fits = (after < kExactMaxSum) & (after > -kExactMaxSum);
      accumulator[i] = fits ? after : before;
      refused += (in_range & fits) ? 0 : 1;
    }
    return refused;
  }
};

struct ExactToFloat {
  SHOAL_INLINE void Run(const int64_t* __restrict accumulator, float* __restrict value,
                        int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      value[i] = static_cast<float>(static_cast<double>(accumulator[i]) * kExactUnit);
    }
  }
};

// Partial sums: twice as many as the widest vectors hold, so that additions of one do not wait for
// those of another.
constexpr int kLanes = 16;

struct Statistics {
  SHOAL_INLINE GradientStatistics Run(const float* gradient, int64_t count) {
    double lanes[kLanes] = {};
    int32_t non_finite_lanes[kLanes] = {};
    const int64_t whole = count / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float value = gradient[i + lane];
        const double wide = static_cast<double>(value);
        lanes[lane] += wide * wide;
        const uint32_t exponent = std::bit_cast<uint32_t>(value) & 0x7F800000u;
        non_finite_lanes[lane] += exponent == 0x7F800000u ? 1 : 0;
      }
    }
    GradientStatistics result;
    for (int64_t i = whole; i < count; ++i) {
      const double wide = static_cast<double>(gradient[i]);
      lanes[i - whole] += wide * wide;
      result.non_finite += std::isfinite(gradient[i]) ? 0 : 1;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      result.sum_of_squares += lanes[lane];
      result.non_finite += non_finite_lanes[lane];
    }
    return result;
  }
};

constexpr AccumulateKernels kBaseline = {RunBaseline<Set>,          RunBaseline<Set>,
                                         RunBaseline<Add>,          RunBaseline<Add>,
                                         RunBaseline<AddExact>,     RunBaseline<AddExact>,
                                         RunBaseline<ExactToFloat>, RunBaseline<Statistics>};
constexpr AccumulateKernels kWide = {RunWide<Set>,          RunWide<Set>,       RunWide<Add>,
                                     RunWide<Add>,          RunWide<AddExact>,  RunWide<AddExact>,
                                     RunWide<ExactToFloat>, RunWide<Statistics>};

}  // namespace

const AccumulateKernels& GetAccumulateKernels(KernelWidth width) {
  return width == KernelWidth::kWide ? kWide : kBaseline;
}

}  // namespace shoal::server
