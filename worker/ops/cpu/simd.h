// Mathematics for the inner loops of the CPU operators (core/base/simd.h). Products that feed sums
// use std::fma, since contraction is off (CMake, shoal_flags).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/base/bf16.h"
#include "core/base/simd.h"

// For the lambdas passed to SumOf.
#define SHOAL_INLINE_LAMBDA __attribute__((always_inline))

namespace shoal::worker::cpu {

SHOAL_INLINE float Load(const float* from) { return *from; }
SHOAL_INLINE float Load(const BFloat16* from) {
  return std::bit_cast<float>(static_cast<uint32_t>(from->bits) << 16);
}
SHOAL_INLINE void Store(float value, float* to) { *to = value; }
SHOAL_INLINE void Store(float value, BFloat16* to) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (u >> 16) | 0x40u;
  to->bits = static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded);
}

// e^x within 2 units in the last place: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial for e^r
// (Cephes' coefficients), and n put into the exponent. Below -87.3, where the result would be
// subnormal, it is zero; above 88 it is e^88; NaN stays NaN.
SHOAL_INLINE float Exp(float x) {
  // Written as the processor's minimum and maximum are defined, which keep a NaN second operand.
  const float below = 88.0f < x ? 88.0f : x;
  const float bounded = -87.3f > below ? -87.3f : below;
  const float n = std::nearbyint(bounded * 1.44269504088896341f);
  float r = std::fma(n, -0.693359375f, bounded);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p * r, r, r) + 1.0f;
  const auto exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  const float result = p * std::bit_cast<float>(exponent);
  return x < -87.3f ? 0.0f : result;
}

SHOAL_INLINE float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }
// cap * tanh(x / cap)
SHOAL_INLINE float SoftCap(float x, float cap) {
  return cap * (2.0f * Sigmoid(2.0f / cap * x) - 1.0f);
}
// Its derivative, from what it returned.
SHOAL_INLINE float SoftCapSlope(float capped, float cap) {
  const float tanh = capped / cap;
  return 1.0f - tanh * tanh;
}

// Vectors are at most this many elements wide (64 bytes of bf16): a loop over a multiple of it has
// no slow remainder.
inline constexpr int64_t kVectorElements = 32;

// Sums term(j) over [0, count) in kVectorElements lanes that are added up as a tree: the order is
// fixed, and ends in a few vector additions instead of one by one.
template <typename Term>
SHOAL_INLINE float SumOf(int64_t count, const Term& term) {
  float lanes[kVectorElements] = {};
  int64_t j = 0;
  for (; j + kVectorElements <= count; j += kVectorElements) {
#pragma omp simd
    for (int64_t lane = 0; lane < kVectorElements; ++lane) {
      lanes[lane] += term(j + lane);
    }
  }
  for (int64_t lane = 0; j + lane < count; ++lane) {
    lanes[lane] += term(j + lane);
  }
  const auto fold = [&lanes](int64_t width) SHOAL_INLINE_LAMBDA {
#pragma omp simd
    for (int64_t lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  };
  static_assert(kVectorElements == 32);
  fold(16);
  fold(8);
  fold(4);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

}  // namespace shoal::worker::cpu
