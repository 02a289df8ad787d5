#include <vector>

#include "common/status.h"
#include "gpu/gpus.h"
#include "server/service/gpu_memory.h"
#include "server/store/cuda/cuda_state.h"

namespace shoal::server {
namespace {

absl::StatusOr<int> ChooseGpu(int server) {
  SHOAL_ASSIGN_OR_RETURN(const gpu::GpuDescriptions found, gpu::DescribeGpus());
  std::vector<int> usable;
  for (const gpu::GpuDescription& gpu : found.gpus) {
    if (gpu::CheckSupported(gpu).ok()) {
      usable.push_back(gpu.index);
    }
  }
  if (usable.empty()) {
    return gpu::CheckSupported(found.gpus.front());
  }
  return usable[static_cast<size_t>(server) % usable.size()];
}

}  // namespace

GpuStateFactory MakeGpuStates(int gpu) {
  return [gpu](int server, const StateLayout& layout,
               ThreadPool*) -> absl::StatusOr<std::unique_ptr<PartitionState>> {
    int chosen = gpu;
    if (chosen < 0) {
      SHOAL_ASSIGN_OR_RETURN(chosen, ChooseGpu(server));
    }
    return MakeCudaState(chosen, layout);
  };
}

}  // namespace shoal::server
