#include "worker/backend/cpu/cpu_device.h"
#include "worker/ops/cpu/cpu_ops.h"
#include "worker/ops/machine.h"

namespace shoal::worker {

Machine MakeCpuMachine(int threads, int64_t memory_budget_bytes) {
  Machine machine;
  machine.device = MakeCpuDevice(memory_budget_bytes);
  machine.ops = MakeCpuOps(*machine.device, threads);
  return machine;
}

}  // namespace shoal::worker
