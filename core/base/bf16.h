// bfloat16 and half precision: storage types with conversions; arithmetic uses float.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace shoal {

// The upper half of a float. Conversion from float rounds to nearest even and keeps NaN a NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) : bits(FromFloat(value)) {}
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

  static uint16_t FromFloat(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (u >> 16) | 0x40u;
    return static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded);
  }
};
static_assert(sizeof(BFloat16) == 2);

// Converts IEEE half to float (F16 weights are only ever read).
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0x1Fu) {
    return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal or zero
  return sign != 0 ? -magnitude : magnitude;
}

// Converts element by element; the loops vectorise. Sizes must agree.
inline void Convert(std::span<const float> from, BFloat16* to) {
  for (size_t i = 0; i < from.size(); ++i) {
    to[i] = BFloat16(from[i]);
  }
}
inline void Convert(std::span<const BFloat16> from, float* to) {
  for (size_t i = 0; i < from.size(); ++i) {
    to[i] = static_cast<float>(from[i]);
  }
}

}  // namespace shoal
