// The state of partitions in memory of a GPU, and kernels that do the arithmetic of host_state.h on
// it, operation for operation. See partition_state.h.
//
// Partitions take turns over a few streams (plan::kServerGpuStreams), so that the copies of one run
// beside the kernels of another, and all work on one partition is in order. Each stream has room on
// the GPU for one partition's elements: gradients pushed over the host come there before they are
// added, new weights lie there before they are copied to the host. In shared memory gradients are
// added where they lie, and new weights are written where they are read. An Add returns once its
// payload is copied, or where that is shared, added; that the sum is whole is known when Statistics
// returns. What is loaded and read goes through a piece of pinned memory of each stream.
//
// The library leaves the kernels and the runtime open: programs link shoal_server_gpu_memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "server/store/partition_state.h"

namespace shoal::server {

// `gpu` as this process counts them. NotFound without a driver or this GPU; FailedPrecondition
// where our kernels do not run on it; ResourceExhausted where it has too little memory free.
absl::StatusOr<std::unique_ptr<PartitionState>> MakeCudaState(int gpu, const StateLayout& layout,
                                                              Clock& clock = RealClock());

}  // namespace shoal::server
