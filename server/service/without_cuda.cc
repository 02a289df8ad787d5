#include "core/base/status.h"
#include "server/service/gpu_memory.h"

namespace shoal::server {

GpuOpener MakeGpuOpener(int /*gpu*/) {
  return [](int, bool) -> absl::StatusOr<ServerGpu> {
    return Unimplemented(
        "this server is built without CUDA; build it where the CUDA toolkit is, or say "
        "service.memory: host");
  };
}

}  // namespace shoal::server
