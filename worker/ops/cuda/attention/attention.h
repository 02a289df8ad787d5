// Attention on a GPU: chooses the kernels, makes their lists of work, and has their scratch memory.
// Contracts are in worker/ops/ops.h.
//
// bf16 goes to cuDNN's fused engines where they serve (cudnn/cudnn_attention.h), and to kernels of
// ours otherwise. Of ours, bf16 with head sizes that are a multiple of 8 up to 256, and rows
// aligned to 16 bytes, runs on tensor cores, in tiles as large as the GPU's shared memory makes
// them pay; everything else, and gradients of heads above 128 where a block has less than 133 KiB,
// on the plain kernels.
//
// Our kernels are deterministic: the same input gives the same bits. cuDNN's backward pass adds in
// any order, so it is used only where options.deterministic is false. Sequences do not see each
// other, whatever they hold. Device memory: 8 bytes a row and head for our backward pass, kept; the
// lists, a few KiB each.
//
// Threads: one at a time. The caller has made the device's GPU current. Shapes are checked; what
// the machine refuses is returned, and then nothing of the result is certain.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "worker/backend/backend.h"
#include "worker/ops/cuda/attention/fused_attention.h"
#include "worker/ops/cuda/attention/shape.h"
#include "worker/ops/cuda/attention/work_list.h"
#include "worker/ops/ops.h"

namespace shoal::worker::cuda {

struct AttentionOptions {
  std::unique_ptr<FusedAttention> fused;  // null: without; on the same stream
  bool deterministic = true;              // the same input gives the same bits
  int64_t shared_bytes = 0;               // of a block, at most; 0: what the GPU has
  // Told of each backward pass whether the fused kernels serve it; may be null.
  std::function<void(bool fused)> backward_pass = {};
};

class Attention {
 public:
  // Device and stream outlive this; the stream is one of the device, which MakeCudaDevice has made.
  Attention(Device& device, Stream& stream, AttentionOptions options = {});

  absl::Status Forward(ConstMatrix qkv, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, Matrix out, float* log_sum_exp);
  absl::Status Backward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                        const float* log_sum_exp, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, const Rotation& rotation,
                        Matrix d_qkv);
  absl::Status Decode(ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                      const AttentionShape& shape, Matrix out);

  // Passes that went to the fused kernels.
  int64_t fused() const { return fused_ == nullptr ? 0 : fused_->served(); }

 private:
  // The problem with the tiles that `of` and `size` cut.
  absl::StatusOr<AttentionProblem> WithTiles(AttentionProblem problem, TileCut::Of of, int32_t size,
                                             std::span<const int32_t> cu_seqlens);
  // Gradients of turned heads to those of what they were before.
  absl::Status TurnBack(const AttentionShape& shape, const Rotation& rotation,
                        const Matrix& d_qkv) const;
  absl::StatusOr<std::byte*> Scratch(int64_t bytes);
  void TellOfBackward(bool fused) const;
  absl::Status ToStatus(cudaError_t error, const char* what) const;

  Device& device_;
  const cudaStream_t stream_;
  const bool deterministic_;
  const int64_t shared_bytes_;
  const std::unique_ptr<FusedAttention> fused_;  // may be null
  const std::function<void(bool fused)> backward_pass_;
  WorkLists lists_;
  Buffer scratch_;
};

}  // namespace shoal::worker::cuda
