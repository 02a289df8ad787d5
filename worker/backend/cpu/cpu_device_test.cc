#include "worker/backend/cpu/cpu_device.h"

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

TEST(CpuDevice, CountsAgainstTheBudgetAndGivesBack) {
  const std::unique_ptr<Device> device = MakeCpuDevice(1000);
  {
    absl::StatusOr<Buffer> first = device->Allocate(600);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first->data()) % kBufferAlignment, 0u);
    const absl::StatusOr<Buffer> second = device->Allocate(600);
    ASSERT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr("600 of 1000"));
    Buffer moved = *std::move(first);
    EXPECT_EQ(device->allocated_bytes(), 600);
    moved = Buffer();
    EXPECT_EQ(device->allocated_bytes(), 0);
    EXPECT_TRUE(device->Allocate(1000).ok());
  }
  EXPECT_EQ(device->allocated_bytes(), 0);
  EXPECT_EQ(device->peak_bytes(), 1000);
}

TEST(CpuDevice, MemoryOfTheHostHasABudgetOfItsOwn) {
  const std::unique_ptr<Device> device = MakeCpuDevice(1000);
  const std::unique_ptr<Memory> host = device->NewHostMemory(2000);
  const Buffer first = *host->Allocate(1500);
  EXPECT_EQ(device->allocated_bytes(), 0);
  const absl::StatusOr<Buffer> second = host->Allocate(600);
  EXPECT_EQ(
      second.status().message(),
      "host memory: 600 B asked for, 1500 of 2000 B in use; raise its budget or offload less");
}

TEST(CpuDevice, StreamsCopyInOrder) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Stream> compute = device->NewStream(StreamKind::kCompute);
  const std::unique_ptr<Stream> copies = device->NewStream(StreamKind::kCopy);
  Buffer buffer = *device->Allocate(int64_t{3} << 20);
  const char text[] = "activations";
  copies->Copy(buffer.data(), text, sizeof(text));
  const std::unique_ptr<Event> copied = copies->Record();
  compute->WaitFor(*copied);
  char back[sizeof(text)];
  compute->Copy(back, buffer.data(), sizeof(text));
  compute->Zero(buffer.data(), sizeof(text));
  ASSERT_TRUE(compute->Synchronize().ok());
  EXPECT_TRUE(copied->Wait().ok() && copied->WaitDone(absl::ZeroDuration()));
  EXPECT_STREQ(back, text);
  EXPECT_EQ(static_cast<int>(buffer.data()[0]), 0);
}

}  // namespace
}  // namespace shoal::worker
