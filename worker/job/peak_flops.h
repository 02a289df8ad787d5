// What a worker's device can compute at most, the measure of its model FLOPs utilization.
#pragma once

#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "worker/ops/compute_device.h"

namespace shoal::worker {

// Returns the FLOP/s of the best of a few square products of matrices, growing until they are long
// enough to time, in some ten milliseconds on a CPU. Takes memory outside the device's budget, and
// frees it.
absl::StatusOr<double> MeasurePeakFlops(const ComputeDevice& compute_device, DType type);

}  // namespace shoal::worker
