// Launches of attention's forward pass; ops.h has the contract. Leaves `out` rows of no sequence
// unchanged.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/attention/shape.h"

namespace shoal::worker::cuda {

// bf16; strides in elements. log_sum_exp[heads, tokens].
struct AttentionForwardArgs {
  AttentionProblem problem;
  AttentionTiles tiles;
  const void* qkv = nullptr;
  int64_t qkv_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  float* log_sum_exp = nullptr;
};

// Runs on tensor cores: `tiles` must be large or small ones of head_dim that fit a block's shared
// memory, all rows must start at multiples of 16 bytes, and the problem's tiles must be of
// `forward_rows` rows.
cudaError_t AttentionForward(cudaStream_t stream, const AttentionForwardArgs& args);

}  // namespace shoal::worker::cuda
