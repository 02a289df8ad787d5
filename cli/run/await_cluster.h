// Waits until a job can be submitted.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/rpc/channel.h"

namespace shoal::cli {

// Blocks until the coordinator answers and so many servers are registered: `limit` for each. Tells
// early what keeps the coordinator from being reached. Ends with the first error of `check`, which
// is asked again and again.
absl::Status AwaitCluster(rpc::Channel& coordinator, int64_t servers, absl::Duration limit,
                          const std::function<void(const std::string&)>& tell,
                          const std::function<absl::Status()>& check, Clock& clock = RealClock());

}  // namespace shoal::cli
