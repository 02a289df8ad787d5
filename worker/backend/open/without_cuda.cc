#include "core/base/status.h"
#include "worker/backend/open/open_device.h"
#include "worker/backend/open/open_gpu.h"

namespace shoal::worker {
namespace {

absl::Status WithoutCuda() {
  return Unimplemented(
      "this build is without CUDA: build it where the CUDA toolkit (nvcc, 12.8 or newer) is, or "
      "say train.device cpu");
}

}  // namespace

absl::StatusOr<gpu::GpuDescriptions> FindGpus() { return WithoutCuda(); }
absl::Status CheckUsable(const gpu::GpuDescription& /*gpu*/) { return WithoutCuda(); }
absl::StatusOr<int64_t> FreeGpuBytes(const gpu::GpuDescription& /*gpu*/) { return WithoutCuda(); }
absl::StatusOr<OpenedDevice> OpenGpu(const DeviceRequest& /*request*/) { return WithoutCuda(); }

}  // namespace shoal::worker
