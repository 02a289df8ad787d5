// GpuMemory over the CUDA driver. A GPU's primary context, which the CUDA runtime uses too, is
// taken when the GPU is first used (that of the home GPU at once) and kept until destruction; each
// call makes it the calling thread's while it runs. Copies that are not done within a minute, which
// only a GPU that hangs takes, are DeadlineExceeded, and may still be under way.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/transport/cuda/cuda_driver.h"
#include "core/transport/gpu_memory.h"

namespace shoal::transport {

// `home`: the GPU that this process uses, whose context pins memory of the host. NotFound where
// there is no driver or no such GPU.
absl::StatusOr<std::unique_ptr<GpuMemory>> OpenCudaMemory(int home = 0);
// The same over given functions.
absl::StatusOr<std::unique_ptr<GpuMemory>> OpenCudaMemory(const CudaDriver& driver, int home = 0,
                                                          Clock& clock = RealClock());

}  // namespace shoal::transport
