#include "worker/backend/open/open_device.h"

#include "core/base/status.h"
#include "worker/backend/open/open_gpu.h"

namespace shoal::worker {

std::vector<int> UsableGpus() {
  std::vector<int> usable;
  if (const absl::StatusOr<gpu::GpuDescriptions> found = FindGpus(); found.ok()) {
    for (const gpu::GpuDescription& gpu : found->gpus) {
      if (CheckUsable(gpu).ok()) {
        usable.push_back(gpu.index);
      }
    }
  }
  return usable;
}

absl::StatusOr<OpenedDevice> OpenDevice(const DeviceRequest& request) {
  const std::vector<int> gpus =
      request.kind == plan::DeviceKind::kCpu ? std::vector<int>() : UsableGpus();
  if (request.kind != plan::DeviceKind::kCuda && gpus.empty()) {
    return OpenedDevice{.compute_device = MakeCpuComputeDevice(request.threads)};
  }
  DeviceRequest on_gpu = request;
  if (request.kind != plan::DeviceKind::kCuda) {
    on_gpu.gpu = gpus.front();
  }
  return OpenGpu(on_gpu);
}

}  // namespace shoal::worker
