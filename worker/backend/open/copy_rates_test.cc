#include "worker/backend/open/copy_rates.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_device.h"

namespace shoal::worker {
namespace {

// A bus that takes at least that long: no machine can seem faster than it is.
TEST(CopyRates, AreAtMostTheBus) {
  constexpr double kRate = 200e6;
  const auto device = MakeCpuDevice(0, {.bytes_per_second = kRate});
  const absl::StatusOr<CopyRates> rates = MeasureCopyRates(*device, 1 << 20);
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GT(rates->to_device, 0);
  EXPECT_LE(rates->to_device, kRate);
  EXPECT_GT(rates->to_host, 0);
  EXPECT_LE(rates->to_host, kRate);
  EXPECT_LE(rates->both, 2 * kRate);
  EXPECT_EQ(device->allocated_bytes(), 0);
}

TEST(CopyRates, FailWithTheDevice) {
  EXPECT_EQ(MeasureCopyRates(*MakeCpuDevice(1000), 1 << 20).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(MeasureCopyRates(*MakeCpuDevice(0, {.fail_at_copy = 2}), 4096).ok());
}

}  // namespace
}  // namespace shoal::worker
