// Attention by cuDNN's fused engines, which use the newest GPUs' instructions: for bf16 on GPUs of
// compute capability 9.0 and 10.x. If it does not serve a batch, the caller uses our own kernels
// (attention.h).
//
// Plans are made for batches of up to a number of sequences of up to a number of tokens, both
// powers of two, on first use; that compiles kernels, which takes seconds, and is logged. What
// cannot be planned or run is logged once and not tried again. The forward pass is deterministic;
// the backward pass adds up the gradients of the queries in any order, so it serves only if that is
// allowed.
//
// Device memory:
// - forward: 4 bytes per token and head;
// - backward: 8 bytes more, 6 per element of the queries' gradient, 2 per element of the keys' and
//   values'; if heads share keys, 4 more per element of the queries'; and the plan's own.
//
// Keeps the memory of the largest batch: all passes are on one stream, so none waits for another's.
// Frees it between passes if the device runs out. Does not serve if there is too little memory.
//
// Threads: one at a time. The caller has made the device's GPU current.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cuda/attention/cudnn/attention_graph.h"
#include "worker/ops/cuda/attention/cudnn/sequence_lists.h"
#include "worker/ops/cuda/attention/fused_attention.h"

namespace shoal::worker::cuda {

class CudnnAttention final : public FusedAttention {
 public:
  // Copies `cudnn`; device and stream must outlive this. Fails if it does not support the GPU, or
  // the library cannot start.
  static absl::StatusOr<std::unique_ptr<CudnnAttention>> Create(const Cudnn& cudnn, Device& device,
                                                                Stream& stream);
  ~CudnnAttention() override;

  bool Forward(ConstMatrix qkv, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
               Matrix out, float* log_sum_exp) override;
  bool Backward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out, const float* log_sum_exp,
                const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                const Rotation& rotation, Matrix d_qkv) override;
  int64_t served() const override { return served_; }

 private:
  static constexpr size_t kMostPlans = 32;

  // For one pass of one kind of batch; has no plan if none is possible.
  struct Planned {
    AttentionBounds bounds;
    std::optional<CudnnPlan> plan;
  };
  struct Pass;

  CudnnAttention(const Cudnn& cudnn, Device& device, Stream& stream, cudnnHandle_t handle);
  // Null if none is possible.
  Planned* PlanFor(const AttentionBounds& bounds);
  // Returns the pieces for one pass.
  template <typename Scratch>
  absl::StatusOr<Scratch> ScratchFor(const Planned& planned, int64_t used)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(scratch_mutex_);
  bool GiveBackScratch() ABSL_LOCKS_EXCLUDED(scratch_mutex_);
  absl::Status Run(Planned& planned, const Pass& pass);
  absl::Status RunForward(Planned& planned, ConstMatrix qkv, const AttentionShape& shape,
                          std::span<const int32_t> cu_seqlens, Matrix out, float* log_sum_exp)
      ABSL_LOCKS_EXCLUDED(scratch_mutex_);
  absl::Status RunBackward(Planned& planned, ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                           const float* log_sum_exp, const AttentionShape& shape,
                           std::span<const int32_t> cu_seqlens, const Rotation& rotation,
                           Matrix d_qkv) ABSL_LOCKS_EXCLUDED(scratch_mutex_);
  // Returns whether it served; otherwise logs why and never plans that again.
  bool Served(Planned& planned, const absl::Status& status);
  absl::Status ToStatus(cudaError_t error, const char* what) const;

  const Cudnn cudnn_;
  Device& device_;
  Stream& stream_;
  const cudnnHandle_t handle_;
  SequenceListCache lists_;
  std::list<Planned> plans_;   // most recently used first
  absl::Mutex scratch_mutex_;  // held while work that uses it is put on the stream
  Buffer scratch_ ABSL_GUARDED_BY(scratch_mutex_);
  int64_t served_ = 0;
  const KeptMemory kept_;
};

}  // namespace shoal::worker::cuda
