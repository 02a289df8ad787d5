// Launches of attention's backward pass; ops.h has the contract. The statistics of the rows come
// first; then one launch computes the gradients of keys and values and those of queries, which
// together write all of d_qkv's rows that belong to a sequence.
//
// Without atomics, so that the same input gives the same bits: the block that has the keys sums
// d_keys and d_values, the one that has the rows sums d_queries. For that the scores are computed
// twice: seven products of a tile where five would do.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/attention/shape.h"

namespace shoal::worker::cuda {

// bf16; strides in elements.
struct AttentionBackwardArgs {
  AttentionProblem keys;  // with tiles of `d_key_keys` keys
  AttentionProblem rows;  // same as above with tiles of `d_query_rows` rows
  AttentionTiles tiles;
  const void* d_out = nullptr;
  int64_t d_out_stride = 0;
  const void* qkv = nullptr;
  int64_t qkv_stride = 0;
  const RowStatistics* statistics = nullptr;
  void* d_qkv = nullptr;
  int64_t d_qkv_stride = 0;
};

// Runs on tensor cores: `tiles` must be large or small ones of head_dim that fit a block's shared
// memory, and all rows must start at multiples of 16 bytes.
cudaError_t AttentionBackward(cudaStream_t stream, const AttentionBackwardArgs& args);

}  // namespace shoal::worker::cuda
