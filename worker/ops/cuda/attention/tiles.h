// How attention is cut into tiles, for host code (which makes the lists of work) and kernels alike.
//
// The query heads that share a kv head are handled together: a sequence of `length` tokens and one
// kv head give length x group ROWS, row i being token i / group and head i % group of the group.
// Row i sees the window's keys up to i / group. So tiles of rows are full even if sequences are
// short, tiles on the diagonal are small, and d_keys and d_values sum over the heads of their group
// in the loop in which they sum over queries.
#pragma once

#include <cstdint>

namespace shoal::worker::cuda {

// Divides by the group's size without a division: right for dividends up to 2^32 / group.
struct GroupDivider {
  uint64_t reciprocal = uint64_t{1} << 32;  // 2^32 / size, rounded up
  int32_t size = 1;

  static constexpr GroupDivider Of(int32_t size) {
    const auto divisor = static_cast<uint64_t>(size);
    return {((uint64_t{1} << 32) + divisor - 1) / divisor, size};
  }
  constexpr int32_t Quotient(int32_t dividend) const {
    return static_cast<int32_t>((static_cast<uint64_t>(dividend) * reciprocal) >> 32);
  }
};

// One block's share of a sequence: of its tokens [begin, begin + length) the tile that starts at
// row or key `first`.
struct AttentionTile {
  int32_t begin = 0;
  int32_t length = 0;
  int32_t first = 0;
};

// Blocks have four warps. Each holds 16 or 32 rows (keys, in the kernel of their gradients): 32 if
// registers allow, which halves what a warp reads of shared memory for each product.
inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = 4;

// Elements from one row of a tile in shared memory to the next, and the bytes of a tile's rows.
constexpr int TilePitch(int width) { return width + 8; }
constexpr int TileBytes(int rows, int width) { return rows * TilePitch(width) * 2; }

// The tiles of the kernels on tensor cores for heads of up to `width` elements.
struct AttentionTiles {
  int width = 0;  // 0: no such kernel; the plain ones serve

  int forward_rows = 0;   // rows of a block
  int forward_keys = 0;   // keys at a time
  int d_query_rows = 0;   // rows of a block, in the backward pass
  int d_key_keys = 0;     // keys of a block
  int backward_step = 0;  // keys, or rows, that a block of the backward pass handles at a time

  // Shared memory of a block.
  constexpr int forward_bytes() const { return TileBytes(forward_rows + 4 * forward_keys, width); }
  constexpr int backward_bytes() const {
    constexpr int kStatistics = 8;
    const int of_block = d_key_keys > d_query_rows ? d_key_keys : d_query_rows;
    return TileBytes(2 * of_block + 4 * backward_step, width) + 2 * backward_step * kStatistics;
  }
};

// Returns, of the existing kernels, the narrowest that `head_dim` fits; head_dim must be a multiple
// of 8 (16 bytes). Larger tiles take fewer instructions for each score.
constexpr AttentionTiles LargeAttentionTiles(int64_t head_dim) {
  if (head_dim <= 0 || head_dim % 8 != 0 || head_dim > 256) {
    return {};
  }
  if (head_dim <= 32) {
    return {32, 128, 64, 128, 128, 64};
  }
  if (head_dim <= 64) {
    return {64, 128, 64, 128, 128, 64};
  }
  if (head_dim <= 96) {
    return {96, 128, 64, 64, 64, 64};
  }
  if (head_dim <= 128) {
    return {128, 128, 64, 64, 64, 64};
  }
  return {256, 64, 32, 64, 64, 32};
}

// The tiles with the least shared memory.
constexpr AttentionTiles SmallAttentionTiles(int64_t head_dim) {
  AttentionTiles tiles = LargeAttentionTiles(head_dim);
  if (tiles.width == 128) {
    tiles.forward_keys = tiles.backward_step = 32;
  }
  return tiles;
}

// For a GPU whose blocks have up to `shared_bytes` of shared memory: the large tiles if a
// multiprocessor holds two such blocks, one of which computes while the other waits. Tiles that
// exceed shared_bytes even so do not run there.
constexpr AttentionTiles AttentionTilesFor(int64_t head_dim, int64_t shared_bytes) {
  constexpr int64_t kOfEachBlock = 1024;  // the system's, which shared_bytes excludes
  const auto two_fit = [&](int64_t bytes) {
    return 2 * (bytes + kOfEachBlock) <= shared_bytes + kOfEachBlock;
  };
  AttentionTiles tiles = LargeAttentionTiles(head_dim);
  const AttentionTiles small = SmallAttentionTiles(head_dim);
  if (!two_fit(tiles.forward_bytes())) {
    tiles.forward_keys = small.forward_keys;
  }
  if (!two_fit(tiles.backward_bytes())) {
    tiles.backward_step = small.backward_step;
  }
  return tiles;
}

// The plain kernels: a warp per row (or key), four rows per warp.
inline constexpr int kPlainTile = 16;

}  // namespace shoal::worker::cuda
