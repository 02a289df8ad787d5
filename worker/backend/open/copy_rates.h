// How fast a device copies from and to pinned memory of the host, and whether it does both at once.
// Measured with a few copies, for `shoal doctor`.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

struct CopyRates {
  double to_device = 0;  // bytes per second
  double to_host = 0;
  double both = 0;  // of the two together, when they run at once
};

// Twice `bytes` of the device and of the host are taken meanwhile.
absl::StatusOr<CopyRates> MeasureCopyRates(Device& device, int64_t bytes = int64_t{64} << 20);

}  // namespace shoal::worker
