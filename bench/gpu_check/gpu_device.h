// The first GPU visible to this process, for parts to run on and for the report.
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

// Whether this process can no longer use the GPU, as after an illegal access.
bool GpuIsLost();

// Takes which kernels ran attention's backward passes on all devices since the last call: "cuDNN",
// "our own kernels", or both with counts; empty if there were none.
std::string TakeAttentionBackward();

// Takes the matrix products that cuBLASLt refused on all devices since the last call, by shape and
// why.
std::map<std::string, int64_t> TakeRefusedProducts();

// `budget_bytes` 0: all free memory.
absl::StatusOr<worker::ComputeDevice> MakeGpuComputeDevice(int64_t budget_bytes);
// As in jobs after their first steps: attention may add in any order, as cuDNN's backward pass
// does, and cuBLASLt's fastest algorithm serves each product, tuned at first use.
absl::StatusOr<worker::ComputeDevice> MakeAnyOrderComputeDevice();
// Uses neither cuBLASLt nor cuDNN.
absl::StatusOr<worker::ComputeDevice> MakeOwnKernelsComputeDevice();

}  // namespace shoal::bench
