// GPU memory that other processes may open (core/transport/gpu_memory.h, shares): a separate
// allocation, since opening a range gives access to the driver's whole allocation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/gpu/cuda_context.h"

namespace shoal::gpu {

// Zeroed through `stream`, which belongs to the context; `bytes` > 0, rounded up to whole pages of
// the driver. May outlive its owner as long as others have it open; it keeps the context alive.
absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(std::shared_ptr<CudaContext> context,
                                                          cudaStream_t stream, int64_t bytes);

}  // namespace shoal::gpu
