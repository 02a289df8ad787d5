#include "common/status.h"
#include "server/service/gpu_memory.h"

namespace shoal::server {

GpuStateFactory MakeGpuStates(int /*gpu*/) {
  return
      [](int, const StateLayout&, ThreadPool*) -> absl::StatusOr<std::unique_ptr<PartitionState>> {
        return Unimplemented(
            "this server is built without CUDA; build it where the CUDA toolkit is, or say "
            "service.memory: host");
      };
}

}  // namespace shoal::server
