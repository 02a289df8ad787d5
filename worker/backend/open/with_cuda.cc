#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/cuda/cuda_memory.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/open/open_device.h"
#include "worker/backend/open/open_gpu.h"
#include "worker/ops/cuda/cuda_ops.h"

namespace shoal::worker {

absl::StatusOr<gpu::GpuDescriptions> FindGpus() { return gpu::DescribeGpus(); }

absl::Status CheckUsable(const gpu::GpuDescription& gpu) { return gpu::CheckSupported(gpu); }

absl::StatusOr<int64_t> FreeGpuBytes(const gpu::GpuDescription& gpu) { return gpu::FreeBytes(gpu); }

absl::StatusOr<OpenedDevice> OpenGpu(const DeviceRequest& request) {
  OpenedDevice opened;
  SHOAL_ASSIGN_OR_RETURN(opened.compute_device.device,
                         MakeCudaDevice({.gpu = request.gpu, .sharing = request.sharing}));
  SHOAL_ASSIGN_OR_RETURN(
      opened.compute_device.ops,
      MakeCudaOps(*opened.compute_device.device, {.deterministic = request.deterministic}));
  const gpu::GpuDescription& gpu = GpuOf(*opened.compute_device.device);
  opened.gpu_name = transport::GpuName(gpu.uuid);
  opened.gpu_share_bytes = gpu.memory_bytes / request.sharing;
  opened.open_collectives = FindCollectives();
  absl::StatusOr<std::unique_ptr<transport::GpuMemory>> reach =
      transport::OpenCudaMemory(request.gpu);
  if (reach.ok()) {
    opened.reach = *std::move(reach);
  } else {
    LogWarning("transports do not reach the memory of cuda:{}: {}", request.gpu,
               Message(reach.status()));
  }
  return opened;
}

}  // namespace shoal::worker
