// What open_device.h needs of CUDA: the two builds link with_cuda.cc or without_cuda.cc.
#pragma once

#include "absl/status/statusor.h"
#include "worker/backend/open/open_device.h"

namespace shoal::worker {

// Opens the GPU request.gpu, and what transports use to reach its memory.
absl::StatusOr<OpenedDevice> OpenGpu(const DeviceRequest& request);

// OpenedDevice::open_collectives, from with_nccl.cc or without_nccl.cc.
CollectivesOpener FindCollectives();

}  // namespace shoal::worker
