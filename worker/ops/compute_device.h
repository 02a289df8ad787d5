// What a model runs on: a device and the operators that compute on it. Its maker passes it to a
// Transformer, which then owns it.
#pragma once

#include <cstdint>
#include <memory>

#include "worker/backend/backend.h"
#include "worker/ops/ops.h"

namespace shoal::worker {

struct ComputeDevice {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;  // on the device; destroyed first
};

// `threads` includes the caller, 0 means one per available core; `memory_budget_bytes` is for what
// the model takes besides weights and gradients, 0: no limit but the machine's.
ComputeDevice MakeCpuComputeDevice(int threads = 0, int64_t memory_budget_bytes = 0);

}  // namespace shoal::worker
