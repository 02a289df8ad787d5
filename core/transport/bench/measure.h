// How a load is timed: runs of which the median counts, since machines drift.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/transport/bench/load.h"

namespace shoal::transport {

// 0 of none.
double Median(std::vector<double> values);

// Operations of that size that a client keeps posted: enough to hide a wake-up, not so much that
// what is under way falls out of the caches.
int64_t OperationsInFlight(int64_t bytes);

struct Speed {
  std::vector<double> bytes_per_second;  // one a run
  std::vector<double> cpu_seconds_per_gb;
};
// One run of about `time`; adds to `speed`.
absl::Status MeasureOnce(Load& load, absl::Duration time, Speed& speed);

// Of operations one at a time, for about `time`.
absl::StatusOr<double> MedianLatency(Load& load, absl::Duration time);

}  // namespace shoal::transport
