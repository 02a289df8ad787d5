// Measures with a few copies how fast a device copies from and to pinned host memory, and whether
// it does both at once, for `shoal doctor`.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

struct CopyRates {
  double to_device = 0;  // bytes per second
  double to_host = 0;
  double both = 0;  // sum of both directions when they run at once
};

// Takes twice `bytes` of the device and of the host meanwhile.
absl::StatusOr<CopyRates> MeasureCopyRates(Device& device, int64_t bytes = int64_t{64} << 20);

}  // namespace shoal::worker
