#include "worker/job/device_flag.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

TEST(DeviceFlag, NamesADevice) {
  using plan::DeviceKind;
  EXPECT_EQ(*ParseDeviceFlag(""), DeviceFlag{});
  EXPECT_EQ(*ParseDeviceFlag("cpu"), (DeviceFlag{.kind = DeviceKind::kCpu}));
  EXPECT_EQ(*ParseDeviceFlag("cuda"), (DeviceFlag{.kind = DeviceKind::kCuda, .gpu = 0}));
  EXPECT_EQ(*ParseDeviceFlag("cuda:13"), (DeviceFlag{.kind = DeviceKind::kCuda, .gpu = 13}));
}

TEST(DeviceFlag, RefusesOthers) {
  for (const char* text :
       {"gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:99999999999", "CPU", "auto"}) {
    EXPECT_EQ(ParseDeviceFlag(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace shoal::worker
