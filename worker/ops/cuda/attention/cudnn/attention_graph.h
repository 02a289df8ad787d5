// Causal attention over packed sequences as cuDNN's operations, in the form of graph that its fused
// engines recognise (from its documentation of fused flash attention), forward and backward. The
// engines implement "FlashAttention-2" (Dao 2023).
//
// A graph serves every batch of up to `sequences` sequences of up to `longest` tokens: how many
// there are, and where they lie, is data. Sequences without tokens cost next to nothing.
#pragma once

#include <cstdint>

#include "worker/ops/cuda/attention/cudnn/graph.h"

namespace shoal::worker::cuda {

struct AttentionBounds {
  int64_t sequences = 0;
  int64_t longest = 0;  // tokens
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  // Distance from a token's row to the next one's, in elements.
  int64_t qkv_stride = 0;
  int64_t out_stride = 0;
  int64_t d_out_stride = 0;  // 0: the forward pass

  bool operator==(const AttentionBounds&) const = default;
};

// The tensors in memory. bf16 unless stated otherwise.
struct AttentionTensor {
  enum Id : int64_t {
    kQueries = 1,
    kKeys,
    kValues,
    kOut,
    kLogSumExp,  // fp32, [token, head]
    kDOut,
    // Dense: [token, head, element].
    kDQueries,
    kDKeys,
    kDValues,
    // Scratch of the backward pass, dense: fp32 gradients of the queries; gradients of keys and
    // values for each head of the queries, only if heads share keys; fp32 [token, head].
    kDQueriesSum,
    kDKeysOfHeads,
    kDValuesOfHeads,
    kDelta,
    // int32, one per sequence.
    kQueryCounts,
    kKeyCounts,
    // int32, where each sequence starts, and the end: in elements of the tensor that the name says.
    kQkvOffsets,
    kOutOffsets,
    kDOutOffsets,
    kQueryOffsets,  // of dense tensors as wide as the heads
    kKvOffsets,     // as wide as the kv heads
    kHeadOffsets,   // of one number per token and head
    // fp32, by value.
    kScale,
    kMasked,  // -infinity
    kOne,
  };
};

CudnnGraph AttentionForwardGraph(const Cudnn& cudnn, const AttentionBounds& bounds);
CudnnGraph AttentionBackwardGraph(const Cudnn& cudnn, const AttentionBounds& bounds);

}  // namespace shoal::worker::cuda
