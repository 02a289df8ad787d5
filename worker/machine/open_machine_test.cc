#include "worker/machine/open_machine.h"

#include "gmock/gmock.h"
#include "gpu/emulation/emulated_gpu.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using gpu::SetEmulatedGpus;
using plan::DeviceKind;

TEST(OpenMachine, TakesAGpuWhereThereIsOne) {
  SetEmulatedGpus({.count = 2});
  EXPECT_EQ(UsableGpus(), (std::vector<int>{0, 1}));
  const absl::StatusOr<OpenedMachine> opened = OpenMachine({});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->machine.device->asynchronous());
  const absl::StatusOr<OpenedMachine> second = OpenMachine({.kind = DeviceKind::kCuda, .gpu = 1});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->machine.device->name(), "cuda:1");
  ASSERT_TRUE(second->turn.has_value());
  EXPECT_EQ(second->turn->place, 1U);
  EXPECT_EQ(second->turn->gpus, 2U);
  const absl::StatusOr<OpenedMachine> half = OpenMachine({.sharing = 2});
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_LE(half->machine.device->budget_bytes(), opened->machine.device->budget_bytes() / 2);
}

TEST(OpenMachine, TakesTheCpuWhereThereIsNone) {
  for (const gpu::EmulatedGpus& none :
       {gpu::EmulatedGpus{.count = 0}, {.driver = false}, {.capability = 60}}) {
    SetEmulatedGpus(none);
    const absl::StatusOr<OpenedMachine> opened = OpenMachine({.threads = 1});
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_FALSE(opened->machine.device->asynchronous());
    EXPECT_FALSE(OpenMachine({.kind = DeviceKind::kCuda}).ok());
  }
}

TEST(OpenMachine, TakesTheCpuWhereItIsToldTo) {
  SetEmulatedGpus({});
  const absl::StatusOr<OpenedMachine> opened =
      OpenMachine({.kind = DeviceKind::kCpu, .threads = 1});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_FALSE(opened->machine.device->asynchronous());
  EXPECT_EQ(OpenMachine({.kind = DeviceKind::kCuda, .gpu = 7}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace shoal::worker
