#include "bench/gpu_check/parts/ceilings.h"

#include "bench/gpu_check/base/device_data.h"
#include "bench/gpu_check/base/timing.h"
#include "core/base/status.h"

namespace shoal::bench {

absl::StatusOr<double> MeasureDeviceCopy(worker::ComputeDevice& compute_device,
                                         const PartSizes& sizes) {
  DeviceData data(*compute_device.device, compute_device.ops->stream(), 1);
  SHOAL_ASSIGN_OR_RETURN(const worker::Matrix from,
                         data.Normal(DType::kF32, 1, sizes.copy_bytes / 4));
  SHOAL_ASSIGN_OR_RETURN(void* const to, data.Zeros(sizes.copy_bytes));
  SHOAL_ASSIGN_OR_RETURN(const double seconds,
                         MedianSeconds(*compute_device.ops, sizes.batch_seconds, [&](int64_t) {
                           compute_device.ops->stream().Copy(to, from.data, sizes.copy_bytes);
                         }));
  return 2.0 * static_cast<double>(sizes.copy_bytes) / seconds;
}

absl::StatusOr<double> MeasureMatrixRate(worker::ComputeDevice& compute_device,
                                         const PartSizes& sizes, uint64_t seed) {
  DeviceData data(*compute_device.device, compute_device.ops->stream(), seed);
  const int64_t n = sizes.matrix;
  SHOAL_ASSIGN_OR_RETURN(const worker::Matrix a, data.Normal(DType::kBF16, n, n));
  SHOAL_ASSIGN_OR_RETURN(const worker::Matrix b, data.Normal(DType::kBF16, n, n));
  SHOAL_ASSIGN_OR_RETURN(const worker::Matrix c, data.Normal(DType::kBF16, n, n));
  SHOAL_ASSIGN_OR_RETURN(
      const double seconds, MedianSeconds(*compute_device.ops, sizes.batch_seconds, [&](int64_t) {
        compute_device.ops->Matmul({.a = a, .b = b, .c = c, .transpose_b = true});
      }));
  const auto edge = static_cast<double>(n);
  return 2 * edge * edge * edge / seconds;
}

absl::StatusOr<Ceilings> MeasureCeilings(worker::ComputeDevice& compute_device,
                                         const PartSizes& sizes, uint64_t seed) {
  Ceilings ceilings;
  SHOAL_ASSIGN_OR_RETURN(ceilings.copy_bytes_per_second, MeasureDeviceCopy(compute_device, sizes));
  SHOAL_ASSIGN_OR_RETURN(ceilings.matrix_flops_per_second,
                         MeasureMatrixRate(compute_device, sizes, seed));
  return ceilings;
}

}  // namespace shoal::bench
