#include "worker/machine/open_machine.h"

#include "common/status.h"
#include "worker/machine/open_gpu.h"

namespace shoal::worker {

std::vector<int> UsableGpus() {
  std::vector<int> usable;
  if (const absl::StatusOr<GpuDescriptions> found = FindGpus(); found.ok()) {
    for (const GpuDescription& gpu : found->gpus) {
      if (CheckUsable(gpu).ok()) {
        usable.push_back(gpu.index);
      }
    }
  }
  return usable;
}

absl::StatusOr<OpenedMachine> OpenMachine(const MachineRequest& request) {
  const std::vector<int> gpus =
      request.kind == plan::DeviceKind::kCpu ? std::vector<int>() : UsableGpus();
  OpenedMachine opened{.gpus = static_cast<int>(gpus.size())};
  if (request.kind == plan::DeviceKind::kCuda) {
    SHOAL_ASSIGN_OR_RETURN(opened.machine, OpenGpu(request.gpu));
  } else if (!gpus.empty()) {
    SHOAL_ASSIGN_OR_RETURN(opened.machine, OpenGpu(gpus.front()));
  } else {
    opened.machine = MakeCpuMachine(request.threads);
  }
  return opened;
}

}  // namespace shoal::worker
