// Attention by another library's fused kernels, for batches that they accept. Attention
// (attention.h) asks it first and computes what it declines.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/ops/ops.h"

namespace shoal::worker::cuda {

class FusedAttention {
 public:
  virtual ~FusedAttention() = default;

  // Same as Attention's, for bf16 matrices whose rows are aligned to 16 bytes and sequences with at
  // least one token. False: it does not serve here, and its outputs are undefined.
  virtual bool Forward(ConstMatrix qkv, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, Matrix out, float* log_sum_exp) = 0;
  // May add in any order: the same input need not give the same bits. The rotation is none or of
  // whole heads.
  virtual bool Backward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                        const float* log_sum_exp, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, const Rotation& rotation,
                        Matrix d_qkv) = 0;
  // Passes that it served.
  virtual int64_t served() const = 0;
};

// Makes cuDNN's (cudnn/cudnn_attention.h). NotFound if the library is missing, Unimplemented if it
// does not support the GPU or the build is without cuDNN's headers. Device and stream must outlive
// it.
absl::StatusOr<std::unique_ptr<FusedAttention>> MakeCudnnAttention(Device& device, Stream& stream);

}  // namespace shoal::worker::cuda
