// The GPU that partitions lie in (service.memory: cuda) for servers of this process: with_cuda.cc
// and without_cuda.cc are the two builds' ways. One program starts everywhere; CUDA is not touched
// before a job asks for it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/transport/gpu_memory.h"
#include "server/store/partition_state.h"

namespace shoal::server {

struct ServerGpu {
  StateFactory make_state;
  std::string name;  // of the GPU among those of all machines
  // By which clients on this host are let into its memory; null: they are not.
  std::shared_ptr<transport::GpuMemory> reach;
  int index = 0;  // of the GPU in `reach`
};

// For the server of that number. `reached`: whether clients are to be let into its memory.
using GpuOpener = std::function<absl::StatusOr<ServerGpu>(int server, bool reached)>;

// `gpu` as this process counts them; below zero: servers take turns over those that can be used.
// Without CUDA in the build, opening fails and says so.
GpuOpener MakeGpuOpener(int gpu);

}  // namespace shoal::server
