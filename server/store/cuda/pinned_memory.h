// Memory of the host that connections expose, pinned for a GPU's copies: they may keep it longer
// than there is a state, and the context stays with it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/gpu/cuda_context.h"
#include "server/store/partition_state.h"

namespace shoal::server::cuda {

// As PartitionState::Pin has it: why not is in the log.
std::unique_ptr<PartitionState::Pinned> Pin(const std::shared_ptr<gpu::CudaContext>& context,
                                            std::span<std::byte> memory);

}  // namespace shoal::server::cuda
