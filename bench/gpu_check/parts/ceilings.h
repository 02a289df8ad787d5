// The device's measured ceilings, to which every ratio of the report refers.
#pragma once

#include "absl/status/statusor.h"
#include "bench/gpu_check/base/parts.h"
#include "worker/ops/compute_device.h"

namespace shoal::bench {

struct Ceilings {
  double copy_bytes_per_second = 0;    // on the device: bytes read plus bytes written
  double matrix_flops_per_second = 0;  // bf16 on random data
};

absl::StatusOr<double> MeasureDeviceCopy(worker::ComputeDevice& compute_device,
                                         const PartSizes& sizes);
absl::StatusOr<double> MeasureMatrixRate(worker::ComputeDevice& compute_device,
                                         const PartSizes& sizes, uint64_t seed);
absl::StatusOr<Ceilings> MeasureCeilings(worker::ComputeDevice& compute_device,
                                         const PartSizes& sizes, uint64_t seed);

}  // namespace shoal::bench
