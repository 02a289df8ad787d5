// Partitions in a GPU's memory (service.memory: cuda) for servers of this process: with_cuda.cc and
// without_cuda.cc are the two builds' ways. One program starts everywhere; CUDA is not touched
// before a job asks for it.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "server/store/partition_state.h"

namespace shoal::server {

// The state of partitions in memory of a GPU, for the server of that number.
using GpuStateFactory = std::function<absl::StatusOr<std::unique_ptr<PartitionState>>(
    int server, const StateLayout& layout, ThreadPool* pool)>;

// `gpu` as this process counts them; below zero: servers take turns over those that can be used.
// Without CUDA in the build, what is made fails and says so.
GpuStateFactory MakeGpuStates(int gpu);

}  // namespace shoal::server
