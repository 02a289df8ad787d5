// How a kernel comes onto a stream of the emulated runtime. Included by kernel_cpu.h alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "core/gpu/fake_cuda/block.h"

namespace shoal::gpu::emulation {

// `thread` runs once for each thread when the stream comes to it; `kernel` is what attributes are
// of. What the runtime would refuse is the calling thread's last error, as after a launch.
void PutLaunch(cudaStream_t stream, Extent grid, int threads, int64_t shared_bytes,
               const void* kernel, std::function<void()> thread);

}  // namespace shoal::gpu::emulation
