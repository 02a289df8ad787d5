#include "worker/backend/open/open_device.h"

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using gpu::SetFakeGpus;
using plan::DeviceKind;

TEST(OpenDevice, TakesAGpuWhereThereIsOne) {
  SetFakeGpus({.count = 2});
  EXPECT_EQ(UsableGpus(), (std::vector<int>{0, 1}));
  const absl::StatusOr<OpenedDevice> opened = OpenDevice({});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->compute_device.device->asynchronous());
  const absl::StatusOr<OpenedDevice> second = OpenDevice({.kind = DeviceKind::kCuda, .gpu = 1});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->compute_device.device->name(), "cuda:1");
  EXPECT_FALSE(second->gpu_name.empty());
  EXPECT_NE(second->gpu_name, opened->gpu_name);
  const absl::StatusOr<OpenedDevice> half = OpenDevice({.sharing = 2});
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_LE(half->compute_device.device->budget_bytes(),
            opened->compute_device.device->budget_bytes() / 2);
}

TEST(OpenDevice, TellsWhatIsFreeWhereNothingIs) {
  SetFakeGpus({.count = 1, .memory_bytes = int64_t{100} << 20});
  const gpu::GpuDescription gpu = FindGpus()->gpus.front();
  EXPECT_EQ(OpenDevice({}).status().code(), absl::StatusCode::kResourceExhausted);
  const absl::StatusOr<int64_t> free = FreeGpuBytes(gpu);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_EQ(*free, int64_t{100} << 20);
}

TEST(OpenDevice, TakesTheCpuWhereThereIsNone) {
  for (const gpu::FakeGpuOptions& none :
       {gpu::FakeGpuOptions{.count = 0}, {.driver = false}, {.capability = 60}}) {
    SetFakeGpus(none);
    const absl::StatusOr<OpenedDevice> opened = OpenDevice({.threads = 1});
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_FALSE(opened->compute_device.device->asynchronous());
    EXPECT_TRUE(opened->gpu_name.empty());
    EXPECT_FALSE(OpenDevice({.kind = DeviceKind::kCuda}).ok());
  }
}

TEST(OpenDevice, TakesTheCpuWhereItIsToldTo) {
  SetFakeGpus({});
  const absl::StatusOr<OpenedDevice> opened = OpenDevice({.kind = DeviceKind::kCpu, .threads = 1});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_FALSE(opened->compute_device.device->asynchronous());
  EXPECT_EQ(OpenDevice({.kind = DeviceKind::kCuda, .gpu = 7}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace shoal::worker
