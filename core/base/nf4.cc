#include "core/base/nf4.h"

#include <algorithm>
#include <bit>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

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

using Levels = std::array<float, 16>;

Levels Scaled(float scale) {
  Levels levels;
  for (size_t i = 0; i < levels.size(); ++i) {
    levels[i] = kNf4Levels[i] * scale;
  }
  return levels;
}

#ifdef __AVX2__
// Writes a whole block, eight elements at a time: a code's low three bits choose a level in each of
// two registers, its high bit the register.
void DecodeBlock(const Levels& levels, const uint8_t* codes, float* to) {
  const __m256 below = _mm256_loadu_ps(levels.data());
  const __m256 above = _mm256_loadu_ps(levels.data() + 8);
  const __m256i shifts = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
  for (int64_t i = 0; i < kNf4Block; i += 8) {
    int32_t eight = 0;
    std::memcpy(&eight, codes + i / 2, sizeof(eight));
    const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(eight), shifts);
    const __m256 high_bit = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));
    _mm256_storeu_ps(to + i, _mm256_blendv_ps(_mm256_permutevar8x32_ps(below, code),
                                              _mm256_permutevar8x32_ps(above, code), high_bit));
  }
}
#endif

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
  SHOAL_CHECK(count <= kNf4Block);
  const Levels levels = Scaled(scale);
#ifdef __AVX2__
  if (count == kNf4Block) {
    DecodeBlock(levels, codes, to);
    return;
  }
#endif
  for (int64_t i = 0; i < count; ++i) {
    to[i] = levels[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15];
  }
}

void DecodeNf4(float scale, const uint8_t* codes, int64_t count, BFloat16* to) {
  std::array<float, kNf4Block> values;
  DecodeNf4(scale, codes, count, values.data());
  if (count == kNf4Block) {  // that often, and so in wide vectors
    Convert(values, to);
  } else {
    Convert(std::span(values).first(static_cast<size_t>(count)), to);
  }
}

}  // namespace shoal
