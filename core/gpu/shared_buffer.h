// Memory of a GPU that other processes may open (core/transport/gpu_memory.h, shares): an
// allocation of its own, for who opens a range reaches all that the driver gave with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/gpu/cuda_context.h"

namespace shoal::gpu {

// Zeroed by way of `stream`, of the context; `bytes` > 0, rounded up to whole pages of the driver.
// It may outlive whoever took it, as long as others have it open: the context stays with it.
absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(std::shared_ptr<CudaContext> context,
                                                          cudaStream_t stream, int64_t bytes);

}  // namespace shoal::gpu
