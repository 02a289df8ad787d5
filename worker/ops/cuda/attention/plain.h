// Attention without tensor cores: fp32, and whatever the kernels on tensor cores do not accept
// (scores with a cap, head sizes that are no multiple of 8 or above 256, unaligned rows). Correct
// for every shape, deterministic, not fast.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/attention/shape.h"
#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// Needs tiles of kPlainTile rows.
cudaError_t PlainAttentionForward(cudaStream_t stream, const AttentionProblem& problem,
                                  const ConstView& qkv, const View& out, float* log_sum_exp);

// Needs tiles of kPlainTile keys or rows; `statistics` as in backward.h.
struct PlainBackwardArgs {
  AttentionProblem problem;
  ConstView d_out;
  ConstView qkv;
  const RowStatistics* statistics = nullptr;
  View d_qkv;
};
cudaError_t PlainAttentionKeyGradients(cudaStream_t stream, const PlainBackwardArgs& args);
cudaError_t PlainAttentionQueryGradients(cudaStream_t stream, const PlainBackwardArgs& args);

// One query of every head, [heads x head_dim], against `keys.rows` keys and values of [kv_heads x
// head_dim]. Keys are cut into `splits`, each done by one warp per head; `partials` are
// DecodePartialFloats, in device memory. The problem has no tiles.
struct AttentionDecodeArgs {
  AttentionProblem problem;
  ConstView q;
  ConstView keys;
  ConstView values;
  View out;
  int splits = 1;
  float* partials = nullptr;
};
// A multiple of 32 keys for each, few enough to fill a large GPU, so that the order of sums depends
// only on the length.
constexpr int DecodeSplits(int64_t length) {
  constexpr int64_t kLeastKeys = 256;
  constexpr int64_t kMostSplits = 64;
  const int64_t splits = (length + kLeastKeys - 1) / kLeastKeys;
  return static_cast<int>(splits < kMostSplits ? splits : kMostSplits);
}
// For each head and split: its weighted sum of values, its sum of weights and its maximum.
constexpr int64_t DecodePartialFloats(int64_t heads, int64_t head_dim, int splits) {
  return heads * splits * (head_dim + 2);
}
cudaError_t AttentionDecode(cudaStream_t stream, const AttentionDecodeArgs& args);

}  // namespace shoal::worker::cuda
