#include "worker/backend/open/open_machine.h"

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using gpu::SetFakeGpus;
using plan::DeviceKind;

TEST(OpenMachine, TakesAGpuWhereThereIsOne) {
  SetFakeGpus({.count = 2});
  EXPECT_EQ(UsableGpus(), (std::vector<int>{0, 1}));
  const absl::StatusOr<OpenedMachine> opened = OpenMachine({});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->machine.device->asynchronous());
  const absl::StatusOr<OpenedMachine> second = OpenMachine({.kind = DeviceKind::kCuda, .gpu = 1});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->machine.device->name(), "cuda:1");
  EXPECT_FALSE(second->gpu_name.empty());
  EXPECT_NE(second->gpu_name, opened->gpu_name);
  const absl::StatusOr<OpenedMachine> half = OpenMachine({.sharing = 2});
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_LE(half->machine.device->budget_bytes(), opened->machine.device->budget_bytes() / 2);
}

TEST(OpenMachine, TellsWhatIsFreeWhereNothingIs) {
  SetFakeGpus({.count = 1, .memory_bytes = int64_t{100} << 20});
  const gpu::GpuDescription gpu = FindGpus()->gpus.front();
  EXPECT_EQ(OpenMachine({}).status().code(), absl::StatusCode::kResourceExhausted);
  const absl::StatusOr<int64_t> free = FreeGpuBytes(gpu);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_EQ(*free, int64_t{100} << 20);
}

TEST(OpenMachine, TakesTheCpuWhereThereIsNone) {
  for (const gpu::FakeGpuOptions& none :
       {gpu::FakeGpuOptions{.count = 0}, {.driver = false}, {.capability = 60}}) {
    SetFakeGpus(none);
    const absl::StatusOr<OpenedMachine> opened = OpenMachine({.threads = 1});
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_FALSE(opened->machine.device->asynchronous());
    EXPECT_TRUE(opened->gpu_name.empty());
    EXPECT_FALSE(OpenMachine({.kind = DeviceKind::kCuda}).ok());
  }
}

TEST(OpenMachine, TakesTheCpuWhereItIsToldTo) {
  SetFakeGpus({});
  const absl::StatusOr<OpenedMachine> opened =
      OpenMachine({.kind = DeviceKind::kCpu, .threads = 1});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_FALSE(opened->machine.device->asynchronous());
  EXPECT_EQ(OpenMachine({.kind = DeviceKind::kCuda, .gpu = 7}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace shoal::worker
