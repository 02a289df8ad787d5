#include "common/status.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/machine/open_gpu.h"
#include "worker/machine/open_machine.h"
#include "worker/ops/cuda/cuda_ops.h"

namespace shoal::worker {

absl::StatusOr<GpuDescriptions> FindGpus() { return DescribeGpus(); }

absl::Status CheckUsable(const GpuDescription& gpu) { return CheckSupported(gpu); }

absl::StatusOr<Machine> OpenGpu(int gpu) {
  Machine machine;
  SHOAL_ASSIGN_OR_RETURN(machine.device, MakeCudaDevice({.gpu = gpu}));
  SHOAL_ASSIGN_OR_RETURN(machine.ops, MakeCudaOps(*machine.device));
  return machine;
}

}  // namespace shoal::worker
