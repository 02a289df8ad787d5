#include "worker/backend/cpu/cpu_device.h"
#include "worker/ops/compute_device.h"
#include "worker/ops/cpu/cpu_ops.h"

namespace shoal::worker {

ComputeDevice MakeCpuComputeDevice(int threads, int64_t memory_budget_bytes) {
  ComputeDevice compute_device;
  compute_device.device = MakeCpuDevice(memory_budget_bytes);
  compute_device.ops = MakeCpuOps(*compute_device.device, threads);
  return compute_device;
}

}  // namespace shoal::worker
