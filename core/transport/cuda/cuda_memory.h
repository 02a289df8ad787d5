// GpuMemory over the CUDA driver. Retains a GPU's primary context, which the CUDA runtime shares,
// when the GPU is first used (the home GPU's at once) and releases it on destruction; each call
// makes it current in the calling thread while the call runs. Copies that take longer than a
// minute, as only a hanging GPU does, return DeadlineExceeded and may still be in flight.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/transport/cuda/cuda_driver.h"
#include "core/transport/gpu_memory.h"

namespace shoal::transport {

// `home`: the GPU that this process uses; host memory is pinned in its context. NotFound if there
// is no driver or no such GPU.
absl::StatusOr<std::unique_ptr<GpuMemory>> OpenCudaMemory(int home = 0);
// Same as above, over given driver functions.
absl::StatusOr<std::unique_ptr<GpuMemory>> OpenCudaMemory(const CudaDriver& driver, int home = 0,
                                                          Clock& clock = RealClock());

}  // namespace shoal::transport
