#include "core/gpu/gpus.h"
#include "core/gpu/testing/gpu.h"

namespace shoal::gpu {

bool PrepareGpu(uint64_t, int64_t) {
  const absl::StatusOr<GpuDescription> gpu = DescribeGpu(0);
  return gpu.ok() && CheckSupported(*gpu).ok();
}

}  // namespace shoal::gpu
