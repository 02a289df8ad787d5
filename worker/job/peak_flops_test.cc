#include "worker/job/peak_flops.h"

#include "core/base/clock.h"
#include "core/base/testing/status.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

TEST(MeasurePeakFlops, IsAMachinesAndLeavesNoMemory) {
  const ComputeDevice device = MakeCpuComputeDevice(/*threads=*/1);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const auto peak = MeasurePeakFlops(device, type);
    ASSERT_OK(peak.status());
    EXPECT_GT(*peak, 1e7);
    EXPECT_LT(*peak, 1e14);
  }
  EXPECT_EQ(device.device->allocated_bytes(), 0);
}

}  // namespace
}  // namespace shoal::worker
