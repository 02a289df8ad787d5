#include "server/store/accumulate.h"

#include <bit>
#include <cmath>

namespace shoal::server {
namespace {

SHOAL_KERNEL_BODY float ToFloat(float value) { return value; }
SHOAL_KERNEL_BODY float ToFloat(BFloat16 value) { return static_cast<float>(value); }

template <typename T>
SHOAL_KERNEL_BODY void Set(const T* __restrict gradient, float* __restrict accumulator,
                           int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    accumulator[i] = 0.0f + ToFloat(gradient[i]);
  }
}

template <typename T>
SHOAL_KERNEL_BODY void Add(const T* __restrict gradient, float* __restrict accumulator,
                           int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    accumulator[i] += ToFloat(gradient[i]);
  }
}

// 1.5 x 2^52: adding it to a double of magnitude below 2^51 leaves the value, rounded to an
// integer, in the low bits. AVX2 needs it, as it has no conversion to 64-bit integers, and every
// width uses it.
constexpr double kRounder = 0x1.8p52;

SHOAL_KERNEL_BODY int64_t RoundSmall(double value) {
  return std::bit_cast<int64_t>(value + kRounder) - std::bit_cast<int64_t>(kRounder);
}

// Returns round(value x 2^40) for |value| <= 2^20, exactly: the product may need 61 bits, so the
// part above 2^-20 is converted first.
SHOAL_KERNEL_BODY int64_t ToFixed(float value) {
  const double wide = static_cast<double>(value);
  const double shifted = wide * 0x1p20 + kRounder;
  const int64_t high = std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(kRounder);
  const double rest = wide - (shifted - kRounder) * 0x1p-20;  // exact, within +-2^-21
  return high * (int64_t{1} << 20) + RoundSmall(rest * 0x1p40);
}

template <typename T>
SHOAL_KERNEL_BODY int64_t AddExact(const T* __restrict gradient, int64_t* __restrict accumulator,
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

SHOAL_KERNEL_BODY void ExactToFloat(const int64_t* __restrict accumulator, float* __restrict value,
                                    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    value[i] = static_cast<float>(static_cast<double>(accumulator[i]) * kExactUnit);
  }
}

// Partial sums: twice as many as the widest vectors hold, so that additions of one do not wait for
// those of another.
constexpr int kLanes = 16;

SHOAL_KERNEL_BODY GradientStatistics Statistics(const float* gradient, int64_t count) {
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

#define SHOAL_DEFINE_KERNELS(Suffix, attribute)                                            \
  attribute void SetF32##Suffix(const float* g, float* a, int64_t n) { Set(g, a, n); }     \
  attribute void SetBf16##Suffix(const BFloat16* g, float* a, int64_t n) { Set(g, a, n); } \
  attribute void AddF32##Suffix(const float* g, float* a, int64_t n) { Add(g, a, n); }     \
  attribute void AddBf16##Suffix(const BFloat16* g, float* a, int64_t n) { Add(g, a, n); } \
  attribute int64_t AddExactF32##Suffix(const float* g, int64_t* a, int64_t n) {           \
    return AddExact(g, a, n);                                                              \
  }                                                                                        \
  attribute int64_t AddExactBf16##Suffix(const BFloat16* g, int64_t* a, int64_t n) {       \
    return AddExact(g, a, n);                                                              \
  }                                                                                        \
  attribute void ExactToFloat##Suffix(const int64_t* a, float* v, int64_t n) {             \
    ExactToFloat(a, v, n);                                                                 \
  }                                                                                        \
  attribute GradientStatistics Statistics##Suffix(const float* g, int64_t n) {             \
    return Statistics(g, n);                                                               \
  }                                                                                        \
  constexpr AccumulateKernels k##Suffix = {                                                \
      SetF32##Suffix,      SetBf16##Suffix,      AddF32##Suffix,       AddBf16##Suffix,    \
      AddExactF32##Suffix, AddExactBf16##Suffix, ExactToFloat##Suffix, Statistics##Suffix};

SHOAL_DEFINE_KERNELS(Baseline, )
#if SHOAL_HAS_WIDE_KERNELS
SHOAL_DEFINE_KERNELS(Wide, SHOAL_WIDE_KERNEL)
#endif
#undef SHOAL_DEFINE_KERNELS

}  // namespace

const AccumulateKernels& GetAccumulateKernels(KernelWidth width) {
#if SHOAL_HAS_WIDE_KERNELS
  if (width == KernelWidth::kWide) {
    return kWide;
  }
#endif
  return kBaseline;
}

}  // namespace shoal::server
