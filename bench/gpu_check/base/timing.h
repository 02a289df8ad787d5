// Times work on a device's stream.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/report/report.h"
#include "worker/ops/ops.h"

namespace shoal::bench {

// Returns seconds per call: the median over batches of calls, each at least `batch_seconds` long,
// so that the host's time to start and wait for work does not count; warms up first. `call` gets a
// number that goes up by one, to alternate between copies of its data, which might fit a cache.
absl::StatusOr<double> MedianSeconds(worker::Ops& ops, double batch_seconds,
                                     const std::function<void(int64_t number)>& call);

}  // namespace shoal::bench
