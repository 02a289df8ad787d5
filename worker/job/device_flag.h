// The device that a worker's command line names, over the job's train.device.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "core/job/device_kind.h"

namespace shoal::worker {

struct DeviceFlag {
  plan::DeviceKind kind = plan::DeviceKind::kAuto;  // the job's
  int gpu = 0;                                      // with kCuda, as this process counts them
  int sharing = 1;                                  // workers that share that GPU

  bool operator==(const DeviceFlag&) const = default;
};

// "" (by the job), "cpu", "cuda" (the first GPU) or "cuda:N".
absl::StatusOr<DeviceFlag> ParseDeviceFlag(std::string_view text);

}  // namespace shoal::worker
