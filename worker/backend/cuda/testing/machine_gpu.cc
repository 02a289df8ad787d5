#include "worker/backend/cuda/gpus.h"
#include "worker/backend/cuda/testing/gpu.h"

namespace shoal::worker::cuda {

bool PrepareGpu(uint64_t) {
  const absl::StatusOr<GpuDescription> gpu = DescribeGpu(0);
  return gpu.ok() && CheckSupported(*gpu).ok();
}

}  // namespace shoal::worker::cuda
