// The CPU as a device: memory of this process, counted against a budget; streams run inline.
#pragma once

#include <memory>

#include "worker/backend/backend.h"

namespace shoal::worker {

// `budget_bytes` 0: no limit but the machine's.
std::unique_ptr<Device> MakeCpuDevice(int64_t budget_bytes = 0);

}  // namespace shoal::worker
