#include "worker/model/workspace.h"

#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_device.h"

namespace shoal::worker {
namespace {

TEST(Workspace, GrowsOnlyForMore) {
  const std::unique_ptr<Device> device = MakeCpuDevice(10000);
  const std::unique_ptr<Stream> stream = device->NewStream();
  Workspace workspace(*device, *stream);
  const auto carve = [](int64_t rows) {
    return [rows](Carver& carver) {
      carver.TakeArray<float>(3);
      return carver.TakeMatrix(DType::kBF16, rows, 10);
    };
  };
  const Matrix small = *workspace.Fill(carve(10));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data) % kBufferAlignment, 0u);
  const int64_t before = workspace.bytes();
  EXPECT_EQ(workspace.Fill(carve(4))->data, small.data);
  EXPECT_EQ(workspace.bytes(), before);
  EXPECT_TRUE(workspace.Fill(carve(400)).ok());
  EXPECT_GT(workspace.bytes(), before);
  EXPECT_EQ(device->allocated_bytes(), workspace.bytes());
  EXPECT_EQ(workspace.Fill(carve(4000)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(workspace.Fill(carve(10)).ok());
}

}  // namespace
}  // namespace shoal::worker
