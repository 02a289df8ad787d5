// The state of partitions in GPU memory, with kernels that do the arithmetic of host_state.h
// operation for operation. See partition_state.h.
//
// - Partitions take turns over a few streams (plan::kServerGpuStreams), so that the copies of one
//   run concurrently with the kernels of another, while all work on one partition stays in order.
// - Each stream has room on the GPU for one partition's elements: gradients pushed over the host go
//   there before they are added, new weights lie there before they are copied to the host.
// - In shared memory gradients are added in place, and new weights are written where clients read
//   them.
// - An Add returns once its payload is copied or, if shared, added. The sum is known to be complete
//   when Statistics returns.
// - Loads and reads go through a piece of pinned memory of each stream.
//
// The library leaves the kernels and the runtime open: programs link shoal_server_gpu_memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "server/store/partition_state.h"

namespace shoal::server {

// `gpu` is the number by which this process knows it. NotFound without a driver or this GPU;
// FailedPrecondition if our kernels do not run on it; ResourceExhausted if it has too little free
// memory.
absl::StatusOr<std::unique_ptr<PartitionState>> MakeCudaState(int gpu, const StateLayout& layout,
                                                              Clock& clock = RealClock());

}  // namespace shoal::server
