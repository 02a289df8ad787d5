#include "worker/ops/cuda/attention/testing/fused.h"

namespace shoal::worker::cuda {

absl::StatusOr<std::unique_ptr<FusedAttention>> FusedAttentionForTest(Device& device,
                                                                      Stream& stream) {
  return MakeCudnnAttention(device, stream);
}

}  // namespace shoal::worker::cuda
