// How attention is cut into tiles, for host code (which makes the lists of work) and kernels alike.
//
// The query heads that share a kv head are handled together: of a sequence of `length` tokens and
// one kv head there are length x group ROWS, row i being token i / group and head i % group of the
// group. Row i sees keys 0 ... i / group. So tiles of rows are full also where sequences are short,
// tiles on the diagonal are small, and d_keys and d_values sum over the heads of their group in the
// loop in which they sum over queries.
#pragma once

#include <cstdint>

namespace shoal::worker::cuda {

// Division by the group's size without dividing: right for dividends up to 2^32 / group.
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

// Blocks have four warps. Each holds 16 or 32 rows (keys, in the kernel of their gradients): 32
// where registers allow, because what a warp reads of shared memory for each product halves.
inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = 4;

// The tiles of the kernels on tensor cores for heads of up to `width` elements.
struct AttentionTiles {
  int width = 0;  // 0: no such kernel, the plain ones serve

  int forward_rows = 0;  // rows of a block
  int forward_keys = 0;  // keys at a time
  int d_query_rows = 0;  // rows of a block
  int d_query_keys = 0;  // keys at a time
  int d_key_keys = 0;    // keys of a block
  int d_key_rows = 0;    // rows at a time
};

// Of the kernels there are, the narrowest that `head_dim` fits in; it has to be a multiple of 8
// (16 bytes).
constexpr AttentionTiles AttentionTilesFor(int64_t head_dim) {
  if (head_dim <= 0 || head_dim % 8 != 0 || head_dim > 256) {
    return {};
  }
  if (head_dim <= 32) {
    return {32, 128, 64, 128, 64, 128, 64};
  }
  if (head_dim <= 64) {
    return {64, 128, 64, 128, 64, 128, 64};
  }
  if (head_dim <= 96) {
    return {96, 128, 64, 64, 64, 64, 64};
  }
  if (head_dim <= 128) {
    return {128, 128, 32, 64, 64, 64, 64};  // 64 keys at a time would spill a dozen registers
  }
  return {256, 64, 32, 64, 32, 64, 32};
}

// The plain kernels: a warp a row (a key), four rows a warp.
inline constexpr int kPlainTile = 16;

}  // namespace shoal::worker::cuda
