// How long the device takes for work that is put on its stream.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/report/report.h"
#include "worker/ops/ops.h"

namespace shoal::bench {

// Seconds of one call: the median over batches of calls, each at least `batch_seconds` long, so
// that what the host takes to start and to wait for work does not count; after calls that do not
// count. `call` gets a number that goes up by one, by which it may take turns with its data: what
// fits into a cache is else measured there.
absl::StatusOr<double> MedianSeconds(worker::Ops& ops, double batch_seconds,
                                     const std::function<void(int64_t number)>& call);

}  // namespace shoal::bench
