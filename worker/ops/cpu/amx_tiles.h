// The layout of bf16 matrices for AMX: tiles of 1 KiB that the unit loads whole.
//
// A's tile is 16 rows of 32 k; B's is 16 pairs of k, each with 16 columns of two. Four packings,
// for both operands as stored and transposed; elements outside the matrix are zero.
#pragma once

#include <cstdint>

#include "core/base/bf16.h"

namespace shoal::worker::cpu {

inline constexpr int64_t kTileRows = 16;       // of A, or columns of B
inline constexpr int64_t kTileDepth = 32;      // elements of k
inline constexpr int64_t kTileElements = 512;  // kTileRows x kTileDepth

// An operand as stored: op(X)[row, k] is at
//   data[row * stride + k], or with `k_major` at data[k * stride + row].
// Rows are those of A or the columns of B.
struct TileSource {
  const BFloat16* data = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t depth = 0;
  bool k_major = false;
};

// Packs tiles of rows [first, first + 32 x `panels`) and all of k: for each 32 rows, for each 32 of
// k, two tiles. `tiles` needs room for panels x 2 x TilesDeep(depth) tiles.
void PackA(const TileSource& source, int64_t first, int64_t panels, BFloat16* tiles);
void PackB(const TileSource& source, int64_t first, int64_t panels, BFloat16* tiles);

constexpr int64_t TilesDeep(int64_t depth) { return (depth + kTileDepth - 1) / kTileDepth; }

}  // namespace shoal::worker::cpu
