// Puts a kernel on a stream of the fake runtime. Only kernel_cpu.h includes it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "core/gpu/fake_cuda/block.h"

namespace shoal::gpu::fake_cuda {

// Runs `thread` once for each thread when the stream reaches it; attributes belong to `kernel`.
// Errors that the runtime would report become the calling thread's last error, as after a launch.
void PutLaunch(cudaStream_t stream, Extent grid, int threads, int64_t shared_bytes,
               const void* kernel, std::function<void()> thread);

}  // namespace shoal::gpu::fake_cuda
