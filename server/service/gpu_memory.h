// Opens the GPU that partitions lie in (service.memory: cuda): with_cuda.cc and without_cuda.cc are
// the two builds. Touches CUDA only when a job asks for it, so one program starts everywhere.
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
  // Lets clients on this host into its memory; null: they are not.
  std::shared_ptr<transport::GpuMemory> reach;
  int index = 0;  // of the GPU in `reach`
};

// For the server of that number. `reached`: whether to let clients into its memory.
using GpuOpener = std::function<absl::StatusOr<ServerGpu>(int server, bool reached)>;

// `gpu` as this process counts them; below zero: servers take turns over the usable ones. Opening
// fails, and says so, in a build without CUDA.
GpuOpener MakeGpuOpener(int gpu);

}  // namespace shoal::server
