#include "core/base/nf4.h"

#include <algorithm>
#include <bit>

#include "core/base/check.h"

namespace shoal {
namespace {

// Of a block of smaller values they are taken for nearly zero.
constexpr float kLeastScale = 1e-38F;

// Halfway between two levels.
constexpr std::array<float, 15> kBounds = [] {
  std::array<float, 15> bounds = {};
  for (size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = (kNf4Levels[i] + kNf4Levels[i + 1]) / 2;
  }
  return bounds;
}();

// In bits, where what is not a number is above all others.
float LargestMagnitude(std::span<const float> block) {
  uint32_t largest = 0;
  for (const float value : block) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7FFFFFFFU);
  }
  return std::bit_cast<float>(largest);
}

template <typename T>
void Decode(float scale, const uint8_t* codes, int64_t count, T* to) {
  std::array<T, 16> values;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = T(kNf4Levels[i] * scale);
  }
  for (int64_t i = 0; i < count / 2; ++i) {
    to[2 * i] = values[codes[i] >> 4];
    to[2 * i + 1] = values[codes[i] & 15];
  }
  if (count % 2 != 0) {
    to[count - 1] = values[codes[count / 2] >> 4];
  }
}

}  // namespace

float EncodeNf4(std::span<const float> block, uint8_t* codes) {
  SHOAL_CHECK(std::ssize(block) <= kNf4Block);
  const float scale = LargestMagnitude(block);
  const float inverse = 1.0F / std::max(scale, kLeastScale);
  std::array<uint8_t, kNf4Block + 1> of_element = {};
  for (size_t i = 0; i < block.size(); ++i) {
    const float value = block[i] * inverse;
    uint8_t code = 0;
    for (const float bound : kBounds) {
      code += value > bound ? 1 : 0;
    }
    of_element[i] = code;
  }
  for (size_t i = 0; i < block.size(); i += 2) {
    codes[i / 2] = static_cast<uint8_t>(of_element[i] << 4 | of_element[i + 1]);
  }
  return scale;
}

void DecodeNf4(float scale, const uint8_t* codes, int64_t count, float* to) {
  Decode(scale, codes, count, to);
}

void DecodeNf4(float scale, const uint8_t* codes, int64_t count, BFloat16* to) {
  Decode(scale, codes, count, to);
}

}  // namespace shoal
