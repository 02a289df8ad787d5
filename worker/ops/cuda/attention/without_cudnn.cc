#include "core/base/status.h"
#include "worker/ops/cuda/attention/fused_attention.h"

namespace shoal::worker::cuda {

absl::StatusOr<std::unique_ptr<FusedAttention>> MakeCudnnAttention(Device& /*device*/,
                                                                   Stream& /*stream*/) {
  return Unimplemented("this build is without cuDNN's headers");
}

}  // namespace shoal::worker::cuda
