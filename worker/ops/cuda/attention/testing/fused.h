// Fused attention for tests that run on both kinds of GPU: the machine's cuDNN on its own GPU, a
// fake cuDNN on the fake GPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/ops/cuda/attention/fused_attention.h"

namespace shoal::worker::cuda {

absl::StatusOr<std::unique_ptr<FusedAttention>> FusedAttentionForTest(Device& device,
                                                                      Stream& stream);

}  // namespace shoal::worker::cuda
