#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/gpu/gpus.h"
#include "core/plan/memory/gpu_turn.h"
#include "core/transport/cuda/cuda_memory.h"
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
  return usable[plan::PlaceInTurn(static_cast<size_t>(server), usable.size())];
}

}  // namespace

GpuOpener MakeGpuOpener(int gpu) {
  return [gpu](int server, bool reached) -> absl::StatusOr<ServerGpu> {
    int chosen = gpu;
    if (chosen < 0) {
      SHOAL_ASSIGN_OR_RETURN(chosen, ChooseGpu(server));
    }
    SHOAL_ASSIGN_OR_RETURN(const gpu::GpuDescription description, gpu::DescribeGpu(chosen));
    const auto make_state = [chosen](const StateLayout& layout, ThreadPool*) {
      return MakeCudaState(chosen, layout);
    };
    ServerGpu opened{.make_state = make_state,
                     .name = transport::GpuName(description.uuid),
                     .free_bytes = [description] { return gpu::FreeBytes(description); }};
    if (reached) {
      auto reach = transport::OpenCudaMemory(chosen);
      if (reach.ok()) {
        opened.reach = *std::move(reach);
        opened.index = chosen;
      } else {
        LogWarning("clients do not reach the memory of cuda:{}: {}", chosen,
                   Message(reach.status()));
      }
    }
    return opened;
  };
}

}  // namespace shoal::server
