// What every attention kernel knows of its problem, and where a row or a key lies in the packed
// matrices.
#pragma once

#include <cstdint>

#include "worker/ops/cuda/attention/tiles.h"

namespace shoal::worker::cuda {

// `tiles` is in device memory; each is done for every kv head, the heads of one tile by
// neighbouring blocks.
struct AttentionProblem {
  const AttentionTile* tiles = nullptr;
  int64_t tile_count = 0;
  int32_t tokens = 0;  // rows of the matrices, including padding
  int32_t kv_heads = 1;
  int32_t head_dim = 0;
  GroupDivider group;
  int32_t window = 0;  // keys that a query sees, with its own; at most `tokens`
  float scale = 1;     // of products of queries and keys
  float softcap = 0;   // of what that gives; 0: none

  constexpr int64_t blocks() const { return tile_count * kv_heads; }
  constexpr int32_t heads() const { return kv_heads * group.size; }
  // The first key that a query sees.
  constexpr int32_t FirstKey(int32_t query) const {
    return query >= window ? query - window + 1 : 0;
  }
};

// Of one row: log_sum_exp times log2(e), so that 2^(score - it) is the probability, and
// sum(d_out * out). Covers all rows: those of kv head h at [h * tokens * group, ...), token by
// token.
struct alignas(8) RowStatistics {
  float log2_sum_exp;
  float delta;
};

// The rows and keys of one sequence and one kv head within matrices whose columns start with the
// heads of the queries (qkv, out and their gradients).
struct HeadOfSequence {
  AttentionTile tile;
  int32_t kv_head = 0;

  constexpr int32_t rows(const AttentionProblem& p) const { return tile.length * p.group.size; }
  // Element where row i, or the key or value of token i, starts.
  constexpr int64_t RowOffset(const AttentionProblem& p, int64_t stride, int32_t i) const {
    const int32_t token = p.group.Quotient(i);
    const int32_t head = kv_head * p.group.size + i - token * p.group.size;
    return (static_cast<int64_t>(tile.begin) + token) * stride +
           static_cast<int64_t>(head) * p.head_dim;
  }
  constexpr int64_t KeyOffset(const AttentionProblem& p, int64_t stride, int32_t i) const {
    return (static_cast<int64_t>(tile.begin) + i) * stride +
           static_cast<int64_t>(p.heads() + kv_head) * p.head_dim;
  }
  constexpr int64_t ValueOffset(const AttentionProblem& p, int64_t stride, int32_t i) const {
    return KeyOffset(p, stride, i) + static_cast<int64_t>(p.kv_heads) * p.head_dim;
  }
  // Index of row i among RowStatistics.
  constexpr int32_t StatisticsOffset(const AttentionProblem& p, int32_t i) const {
    return (kv_head * p.tokens + tile.begin) * p.group.size + i;
  }
};

}  // namespace shoal::worker::cuda
