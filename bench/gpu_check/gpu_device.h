// The first GPU that this process sees, as parts run on it and as the report describes it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/ops/compute_device.h"

namespace shoal::bench {

// "what", "value". NotFound without a driver or a GPU, with the reason.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> DescribeGpu();

// Whether the GPU is of no more use to this process: after an illegal access, above all.
bool GpuIsLost();

// By whose kernels attention's backward passes ran on all devices since the last call: "cuDNN",
// "our own kernels", or both with how often; empty where there were none.
std::string TakeAttentionBackward();

// Matrix products that cuBLASLt has refused on all devices since the last call, by shape and why.
std::map<std::string, int64_t> TakeRefusedProducts();

// `budget_bytes` 0: all that is free.
absl::StatusOr<worker::ComputeDevice> MakeGpuComputeDevice(int64_t budget_bytes);
// As jobs have it after their first steps: attention may add in any order, which cuDNN's backward
// pass does, and cuBLASLt's fastest algorithm serves each product, looked for at its first use.
absl::StatusOr<worker::ComputeDevice> MakeAnyOrderComputeDevice();
// Without cuBLASLt and cuDNN.
absl::StatusOr<worker::ComputeDevice> MakeOwnKernelsComputeDevice();

}  // namespace shoal::bench
