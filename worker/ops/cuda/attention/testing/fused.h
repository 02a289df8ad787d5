// The fused attention of a test that runs on both kinds of GPU: the machine's own library on the
// machine's GPU, and on the fake one cuDNN's over a fake library that computes there.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/ops/cuda/attention/fused_attention.h"

namespace shoal::worker::cuda {

absl::StatusOr<std::unique_ptr<FusedAttention>> FusedAttentionForTest(Device& device,
                                                                      Stream& stream);

}  // namespace shoal::worker::cuda
