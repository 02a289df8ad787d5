// NF4, a storage type of 4 bits an element with one scale for a block of 64, in the bits of
// bitsandbytes (without its second quantisation): a value is its level times the block's scale, the
// largest magnitude in it. The first of two elements is in a byte's high half.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/base/bf16.h"

namespace shoal {

inline constexpr int64_t kNf4Block = 64;
inline constexpr std::array<float, 16> kNf4Levels = {
    -1.0F,         -0.69619280F, -0.52507305F, -0.39491749F, -0.28444138F, -0.18477343F,
    -0.091050036F, 0.0F,         0.07958030F,  0.16093020F,  0.24611230F,  0.33791524F,
    0.44070983F,   0.56261700F,  0.72295684F,  1.0F};

// Bytes of so many codes.
constexpr int64_t Nf4CodeBytes(int64_t count) { return (count + 1) / 2; }

// Writes the codes of a block, or of what a matrix has left for its last, and returns the scale.
// Takes the nearest level, of two that are as near the lower. A scale is not finite where an
// element is not.
float EncodeNf4(std::span<const float> block, uint8_t* codes);

// Writes `count` elements of one block.
void DecodeNf4(float scale, const uint8_t* codes, int64_t count, float* to);
void DecodeNf4(float scale, const uint8_t* codes, int64_t count, BFloat16* to);

}  // namespace shoal
