// Opens the GPU that holds partitions (service.memory: cuda); with_cuda.cc and without_cuda.cc are
// the two builds. Uses CUDA only if a job asks for it, so one program starts everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/transport/gpu_memory.h"
#include "server/store/partition_state.h"

namespace shoal::server {

struct ServerGpu {
  StateFactory make_state;
  std::string name;  // of the GPU, unique over all machines
  std::function<absl::StatusOr<int64_t>()> free_bytes;
  // Opens its memory to clients on this host; null: closed to them.
  std::shared_ptr<transport::GpuMemory> reach;
  int index = 0;  // of the GPU in `reach`
};

// Opens the GPU of server `server`. `reached`: whether to open its memory to clients.
using GpuOpener = std::function<absl::StatusOr<ServerGpu>(int server, bool reached)>;

// `gpu` as this process counts them; negative: servers take turns over the usable ones. Fails with
// a message in a build without CUDA.
GpuOpener MakeGpuOpener(int gpu);

}  // namespace shoal::server
