// The operator table on the CPU.
#pragma once

#include <memory>

#include "worker/ops/ops.h"

namespace shoal::worker {

// `threads` includes the caller; 0 means one per available core. The device must outlive the table.
std::unique_ptr<Ops> MakeCpuOps(Device& device, int threads);

}  // namespace shoal::worker
