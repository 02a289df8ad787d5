// Shared by attention's forward and backward pass: how queries and keys are cut, and copies between
// the packed matrices and the dense blocks of one kv head.
//
// A block of queries of all the heads that share a kv head is multiplied with blocks of keys, so
// memory is a few blocks a thread whatever the length. Rows of one kv head are copied into dense
// blocks, zero beyond the sequence, which keeps the shapes of products few (compiled kernels) and
// makes it impossible to read across a sequence's end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/bytes.h"
#include "worker/ops/cpu/context.h"
#include "worker/ops/ops.h"

namespace shoal::worker::cpu {

// Keys per block: the block of scores [rows, keys] in fp32 stays within the second-level cache.
// Blocks are dense (their stride is the number of keys): a wider fixed stride makes rows collide in
// the cache.
inline constexpr int64_t kKeyBlock = 256;
// Numbers of keys are rounded up to this, so that products have kKeyBlock / kKeyUnit shapes.
inline constexpr int64_t kKeyUnit = 64;
// The score of a key that a query does not see: its exponential is zero.
inline constexpr float kHidden = -1e30f;
// Target number of rows (queries x heads of a group) of a block of scores.
inline constexpr int64_t kRowsAimedAt = 128;

// Keys of a block that a row sees: [hidden, visible); none if both are 0.
struct SeenKeys {
  int64_t hidden = 0;
  int64_t visible = 0;
};

struct AttentionBlocking {
  AttentionShape shape;
  int64_t group = 1;    // query heads that share a kv head
  int64_t queries = 0;  // queries per block
  int64_t rows = 0;     // queries x group: rows of a block, head by head
  float scale = 1;      // of products of queries and keys
  float softcap = 0;

  explicit AttentionBlocking(const AttentionShape& attention_shape);
  int64_t QueryBlocks(int64_t length) const { return (length + queries - 1) / queries; }
  // The first key that a query sees.
  int64_t FirstKey(int64_t query) const {
    return shape.window > 0 ? std::max<int64_t>(0, query - shape.window + 1) : 0;
  }
  // Of `count` keys from `key` on.
  SeenKeys Seen(int64_t query, int64_t key, int64_t count) const {
    const SeenKeys seen{.hidden = std::max<int64_t>(0, FirstKey(query) - key),
                        .visible = std::clamp<int64_t>(query + 1 - key, 0, count)};
    return seen.hidden < seen.visible ? seen : SeenKeys();
  }

  // Caps a row of products of a query with `count` keys, if the shape says so. Returns the scale
  // that they still need to be scores.
  float CapScores(float* products, int64_t count) const;

  // Products with a block of `keys` keys: [rows, D] [keys, D]^T -> [rows, keys], and [rows, keys]
  // [keys, D] -> [rows, D]; sums are fp32.
  GemmShape Scores(DType input, int64_t keys) const;
  GemmShape WeightedSum(DType input, int64_t keys, bool accumulate) const;
};

// Calls body(first key, count, whether it is the first block) over the blocks of the keys [begin,
// last) of a sequence, in order; counts are rounded up to kKeyUnit, `begin` down.
template <typename Body>
void ForKeyBlocks(int64_t begin, int64_t last, const Body& body) {
  const int64_t start = begin / kKeyUnit * kKeyUnit;
  for (int64_t key = start; key < last; key += kKeyBlock) {
    body(key, std::min(kKeyBlock, RoundUp(last - key, kKeyUnit)), key == start);
  }
}

// A contiguous piece of a packed sequence: tokens [begin, end) of the microbatch.
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length() const { return end - begin; }
};

// Blocks [rows, head_dim]: row head_in_group * queries + i is token first + i; rows beyond `last`
// are zero.
template <typename T>
void CopyQueryBlock(const AttentionBlocking& blocking, ConstMatrix from, int64_t first_head,
                    int64_t first, int64_t last, T* block);
// The inverse, from an fp32 block; multiplies the rows by `factors` (one per row of the block, may
// be null).
template <typename T>
void StoreQueryBlock(const AttentionBlocking& blocking, const float* block, const float* factors,
                     int64_t first_head, int64_t first, int64_t last, Matrix to);
// Tokens [begin, end) of columns [column, column + head_dim) -> dense [padded, head_dim], zero
// after the end.
template <typename T>
void CopyKeys(ConstMatrix from, int64_t column, int64_t head_dim, SequenceRange range,
              int64_t padded, T* keys);

// Zeroes rows of `matrix` that belong to no sequence.
void ZeroRowsFrom(Context& context, Matrix matrix, int64_t first);

}  // namespace shoal::worker::cpu
