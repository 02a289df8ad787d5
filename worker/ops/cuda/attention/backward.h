// Launches of attention's backward pass; ops.h has the contract. The statistics of the rows come
// first, then in one launch the gradients of keys and values and those of queries, which together
// write all of d_qkv's rows that belong to a sequence.
//
// Without atomics, so that the same input gives the same bits: d_keys and d_values are summed by
// the block that has the keys, d_queries by the one that has the rows. For that the scores are
// computed twice: seven products of a tile where five would do.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/attention/shape.h"

namespace shoal::worker::cuda {

// bf16; strides in elements.
struct AttentionBackwardArgs {
  AttentionProblem keys;  // with tiles of `d_key_keys` keys
  AttentionProblem rows;  // the same with tiles of `d_query_rows` rows
  AttentionTiles tiles;
  const void* d_out = nullptr;
  int64_t d_out_stride = 0;
  const void* qkv = nullptr;
  int64_t qkv_stride = 0;
  const RowStatistics* statistics = nullptr;
  void* d_qkv = nullptr;
  int64_t d_qkv_stride = 0;
};

// On tensor cores: `tiles` are large or small ones of head_dim and within what a block may have,
// all rows start at multiples of 16 bytes.
cudaError_t AttentionBackward(cudaStream_t stream, const AttentionBackwardArgs& args);

}  // namespace shoal::worker::cuda
