// What the backward pass needs to know of each row before it starts, for bf16 and fp32 alike.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/attention/shape.h"
#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

struct AttentionStatisticsArgs {
  AttentionProblem problem;  // without tiles
  int64_t used_tokens = 0;   // tokens of sequences, which come first
  ConstView d_out;           // [tokens, heads x head_dim]
  ConstView out;
  const float* log_sum_exp = nullptr;  // [heads, tokens]
  // [kv_heads, tokens x group]; those of used tokens are written
  RowStatistics* statistics = nullptr;
};
cudaError_t AttentionStatistics(cudaStream_t stream, const AttentionStatisticsArgs& args);

// Zeroes rows from `first` on.
cudaError_t ZeroRowsFrom(cudaStream_t stream, const View& matrix, int64_t first);

}  // namespace shoal::worker::cuda
