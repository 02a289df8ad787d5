// The operator table on the CPU.
#pragma once

#include <memory>

#include "worker/ops/ops.h"

namespace shoal::worker {

// `threads` counts the caller's; 0 means one per available core. The device outlives the table.
std::unique_ptr<Ops> MakeCpuOps(Device& device, int threads);

}  // namespace shoal::worker
