// Moments in 8 bits: blocks of values that are fractions of the block's largest, a fp32 scale (as
// "8-bit Optimizers via Block-wise Quantization", Dettmers et al., 2022, keeps them, with other
// levels). Levels are the squares of k / 127 with a sign for the first moment and the fourth powers
// of k / 255 for the second, so that the roots by which AdamW divides have the levels of what they
// divide: the error of a value is a 127th of itself near the largest and grows as it gets smaller.
// A second moment of a block that is not all zero is never rounded to 0, since AdamW divides by it.
//
// A step changes a second moment by about 1 - beta2 of itself, which may be far less than what lies
// between two levels: rounded to the nearest, most changes would be lost. So a step draws one of
// the two levels around a value, such that their mean is the value. The draw is made of the step,
// of the value and of its place in its block, so it does not depend on who holds the partition.
//
// Packing what was unpacked changes no value, so moments may leave as fp32 and come back: into
// checkpoints, to other servers.
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "core/base/simd.h"
#include "core/model/optimizer.h"

namespace shoal::server {

struct PackedBlock {
  float scale;
  uint8_t levels[plan::kPackedBlock];
};
static_assert(sizeof(PackedBlock) == plan::kPackedBlockBytes);

// A block all of whose values are smaller is zero; the least level of a larger one is no denormal.
inline constexpr float kLeastScale = 1e-28F;

struct FirstMoment {
  static constexpr float kLevels = 127;
  static_assert(kLevels * (1 / kLevels) == 1, "the largest is kept as it is");
  SHOAL_INLINE float Value(uint8_t level, float scale) {
    const float root = static_cast<float>(static_cast<int8_t>(level)) * (1 / kLevels);
    return root * std::fabs(root) * scale;
  }
  SHOAL_INLINE int32_t Level(float value, float to_fraction, float /*chance*/) {
    const float root = std::sqrt(std::fabs(value) * to_fraction);
    const auto level = static_cast<int32_t>(std::min(1.0F, root) * kLevels + 0.5F);
    return value < 0 ? -level : level;
  }
};

struct SecondMoment {
  static constexpr float kLevels = 255;
  static_assert(kLevels * (1 / kLevels) == 1);
  SHOAL_INLINE float Value(uint8_t level, float scale) {
    const float root = static_cast<float>(level) * (1 / kLevels);
    return FourthPower(root) * scale;
  }
  SHOAL_INLINE int32_t Level(float value, float to_fraction, float /*chance*/) {
    const float root = std::sqrt(std::sqrt(value * to_fraction));
    const auto level = static_cast<int32_t>(std::min(1.0F, root) * kLevels + 0.5F);
    return std::max<int32_t>(level, value > 0 ? 1 : 0);
  }
  SHOAL_INLINE float FourthPower(float root) { return root * root * (root * root); }
};

struct DrawnSecondMoment : SecondMoment {
  // A scale times its reciprocal may be a little less than 1, and the largest stays what it is.
  static constexpr float kAlmostOne = 1 - 0x1p-22F;

  SHOAL_INLINE int32_t Level(float value, float to_fraction, float chance) {
    const float product = std::min(1.0F, value * to_fraction);
    const float fraction = product > kAlmostOne ? 1.0F : product;
    const auto below = static_cast<int32_t>(std::sqrt(std::sqrt(fraction)) * kLevels);
    const auto root = static_cast<float>(below);
    const float low = FourthPower(root);
    const float gap = FourthPower(root + 1) - low;
    const bool up = chance * gap < fraction * FourthPower(kLevels) - low;
    return std::max<int32_t>(up ? below + 1 : below, value > 0 ? 1 : 0);
  }
};

// In [0, 1). `draws` is of a step (UpdateScalars), `element` counts from a block's first.
SHOAL_INLINE float DrawnChance(uint32_t draws, float value, int64_t element) {
  const auto lane = static_cast<uint32_t>(element % plan::kPackedBlock);
  uint32_t bits = (std::bit_cast<uint32_t>(value) ^ draws) + lane * 0x9E3779B9U;
  bits = (bits ^ (bits >> 16)) * 0x7FEB352DU;  // "lowbias32" of Wellons' hash prospector
  bits = (bits ^ (bits >> 15)) * 0x846CA68BU;
  bits ^= bits >> 16;
  return static_cast<float>(bits >> 8) * 0x1p-24F;
}

// Elements that are packed and unpacked at a time, each loop over all of them, so that loops are of
// whole vectors and what one writes is not read at once by the next.
inline constexpr int64_t kPackedTile = 1024;

// Both of at most kPackedTile elements, a multiple of plan::kPackedBlock.
template <typename Moment>
SHOAL_INLINE void UnpackTile(const PackedBlock* __restrict blocks, float* __restrict values,
                             int64_t count) {
  alignas(64) uint8_t levels[kPackedTile];
  alignas(64) float scales[kPackedTile];
  for (int64_t block = 0; block < count / plan::kPackedBlock; ++block) {
    std::copy_n(blocks[block].levels, plan::kPackedBlock, levels + block * plan::kPackedBlock);
    std::fill_n(scales + block * plan::kPackedBlock, plan::kPackedBlock, blocks[block].scale);
  }
  for (int64_t i = 0; i < count; ++i) {
    values[i] = Moment::Value(levels[i], scales[i]);
  }
}

template <typename Moment>
SHOAL_INLINE void PackTile(const float* __restrict values, PackedBlock* __restrict blocks,
                           int64_t count, uint32_t draws = 0) {
  // Floats without a sign are ordered as their bits. Four times the larger of two neighbours is the
  // largest of a block.
  static_assert(plan::kPackedBlock == 16);
  alignas(64) int32_t largest[kPackedTile];
  for (int64_t i = 0; i < count; ++i) {
    largest[i] = std::bit_cast<int32_t>(std::fabs(values[i]));
  }
  alignas(64) int32_t larger[kPackedTile / 2];
  for (int64_t left = count / 2; left >= count / plan::kPackedBlock; left /= 2) {
    for (int64_t i = 0; i < left; ++i) {
      larger[i] = std::max(largest[2 * i], largest[2 * i + 1]);
    }
    std::copy_n(larger, left, largest);
  }
  alignas(64) float to_fraction[kPackedTile];
  for (int64_t block = 0; block < count / plan::kPackedBlock; ++block) {
    const float scale = std::min(std::bit_cast<float>(largest[block]), FLT_MAX);
    const bool zero = !(scale >= kLeastScale);
    blocks[block].scale = zero ? 0.0F : scale;
    std::fill_n(to_fraction + block * plan::kPackedBlock, plan::kPackedBlock,
                zero ? 0.0F : 1.0F / scale);
  }
  alignas(64) uint8_t levels[kPackedTile];
  for (int64_t i = 0; i < count; ++i) {
    levels[i] = Moment::Level(values[i], to_fraction[i], DrawnChance(draws, values[i], i));
  }
  for (int64_t block = 0; block < count / plan::kPackedBlock; ++block) {
    std::copy_n(levels + block * plan::kPackedBlock, plan::kPackedBlock, blocks[block].levels);
  }
}

// Of a whole array, to the nearest levels; `count` is a multiple of plan::kPackedBlock. `second`:
// the second moment.
void PackMoments(const float* values, void* packed, int64_t count, bool second);
void UnpackMoments(const void* packed, float* values, int64_t count, bool second);

}  // namespace shoal::server
