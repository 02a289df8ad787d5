// Attention on a GPU: chooses the kernels, makes their lists of work, and owns their scratch
// memory. Contracts are in worker/ops/ops.h.
//
// Kernels:
// - bf16 without a window or a cap of scores goes to cuDNN's fused engines if they serve
//   (cudnn/cudnn_attention.h), otherwise to ours.
// - Ours run bf16 without a cap on tensor cores if head sizes are a multiple of 8 up to 256 and
//   rows are aligned to 16 bytes, in tiles as large as the GPU's shared memory makes worthwhile.
// - The plain kernels do everything else, and gradients of heads above 128 if a block has less than
//   133 KiB.
//
// Our kernels are deterministic: the same input gives the same bits. cuDNN's backward pass adds in
// any order, so it is used only if options.deterministic is false. Sequences do not see each other,
// whatever they hold. Device memory: 8 bytes per row and head for our backward pass, kept; the
// lists, a few KiB each.
//
// Threads: one at a time. The caller has made the device's GPU current. Shapes are checked; if the
// machine refuses something, the error is returned and nothing of the result is certain.
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
  std::unique_ptr<FusedAttention> fused;  // null: none; on the same stream
  bool deterministic = true;              // the same input gives the same bits
  int64_t shared_bytes = 0;               // the most of a block; 0: what the GPU has
  // Called for each backward pass with whether the fused kernels serve it; may be null.
  std::function<void(bool fused)> backward_pass = {};
};

class Attention {
 public:
  // Device and stream must outlive this; the stream belongs to the device, which MakeCudaDevice
  // made.
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
  // Returns the problem with the tiles that `of` and `size` cut.
  absl::StatusOr<AttentionProblem> WithTiles(AttentionProblem problem, TileCut::Of of, int32_t size,
                                             std::span<const int32_t> cu_seqlens);
  // Converts gradients of turned heads to those of the heads before.
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
