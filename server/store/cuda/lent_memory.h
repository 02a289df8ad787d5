// Memory beside a GPU's partitions that others keep for longer than there may be a state: what
// other processes open of the GPU, and pinned memory of the host that connections expose. Each
// keeps the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "gpu/cuda_context.h"
#include "server/store/cuda/lane.h"
#include "server/store/partition_state.h"

namespace shoal::server::cuda {

// As PartitionState::AllocateShared has it, cleared on the lane's stream. Takes its mutex.
absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(
    const std::shared_ptr<gpu::CudaContext>& context, Lane& lane, int64_t bytes);

// As PartitionState::Pin has it: why not is in the log.
std::unique_ptr<PartitionState::Pinned> Pin(const std::shared_ptr<gpu::CudaContext>& context,
                                            std::span<std::byte> memory);

}  // namespace shoal::server::cuda
