// Host memory that connections expose, pinned for a GPU's copies. Connections may keep it longer
// than the state exists, so it holds the context.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/gpu/cuda_context.h"
#include "server/store/partition_state.h"

namespace shoal::server::cuda {

// Same as PartitionState::Pin; logs why it cannot pin.
std::unique_ptr<PartitionState::Pinned> Pin(const std::shared_ptr<gpu::CudaContext>& context,
                                            std::span<std::byte> memory);

}  // namespace shoal::server::cuda
