// What every device must do, on a GPU: a fake, with many orders of its work, and real if there is
// one.
#include "worker/backend/cuda/cuda_device.h"

#include <array>
#include <cstring>
#include <vector>

#include "core/base/clock.h"
#include "core/gpu/cuda_context.h"
#include "core/gpu/testing/gpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using testing::HasSubstr;

std::unique_ptr<Device> MakeDevice(int64_t budget_bytes = 0) {
  absl::StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice({.budget_bytes = budget_bytes});
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

class CudaDevice : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    if (!gpu::PrepareGpu(GetParam())) {
      GTEST_SKIP() << "no GPU that can be used";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, CudaDevice, testing::Range(uint64_t{1}, uint64_t{17}));

TEST_P(CudaDevice, CountsAgainstTheBudgetAndGivesBack) {
  const std::unique_ptr<Device> device = MakeDevice(1000);
  {
    absl::StatusOr<Buffer> first = device->Allocate(600);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first->data()) % kBufferAlignment, 0u);
    const absl::StatusOr<Buffer> second = device->Allocate(600);
    ASSERT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(second.status().message(),
              "cuda:0 memory: 600 B asked for, 600 of 1000 B in use; raise the budget or lower "
              "microbatch_tokens");
    Buffer moved = *std::move(first);
    EXPECT_EQ(device->allocated_bytes(), 600);
    moved = Buffer();
    EXPECT_EQ(device->allocated_bytes(), 0);
    EXPECT_TRUE(device->Allocate(1000).ok());
  }
  EXPECT_EQ(device->allocated_bytes(), 0);
  EXPECT_EQ(device->peak_bytes(), 1000);
}

TEST_P(CudaDevice, TakesNearlyAllThatIsFreeWithoutABudget) {
  const std::unique_ptr<Device> device = MakeDevice();
  const int64_t budget = device->budget_bytes();
  EXPECT_GT(budget, GpuOf(*device).memory_bytes / 100);
  EXPECT_LT(budget, GpuOf(*device).memory_bytes - (int64_t{400} << 20));
  EXPECT_TRUE(device->Allocate(budget).ok());
  EXPECT_FALSE(device->Allocate(budget + 1).ok());
}

TEST_P(CudaDevice, MemoryOfTheHostHasABudgetOfItsOwn) {
  const std::unique_ptr<Device> device = MakeDevice(1000);
  const std::unique_ptr<Memory> host = device->NewHostMemory(2000);
  const Buffer first = *host->Allocate(1500);
  std::memset(first.data(), 1, 1500);
  EXPECT_EQ(device->allocated_bytes(), 0);
  const absl::StatusOr<Buffer> second = host->Allocate(600);
  EXPECT_EQ(
      second.status().message(),
      "host memory: 600 B asked for, 1500 of 2000 B in use; raise its budget or offload less");
  const std::unique_ptr<Memory> endless = device->NewHostMemory(0);
  EXPECT_TRUE(endless->Allocate(int64_t{40} << 20).ok());
}

TEST_P(CudaDevice, StreamsCopyInOrder) {
  const std::unique_ptr<Device> device = MakeDevice();
  const std::unique_ptr<Stream> compute = device->NewStream(StreamKind::kCompute);
  const std::unique_ptr<Stream> copies = device->NewStream(StreamKind::kCopy);
  const Buffer buffer = *device->Allocate(int64_t{3} << 20);
  const char text[] = "activations";
  copies->Copy(buffer.data(), text, sizeof(text));
  const std::unique_ptr<Event> copied = copies->Record();
  compute->WaitFor(*copied);
  char back[sizeof(text)];
  compute->Copy(back, buffer.data(), sizeof(text));
  compute->Zero(buffer.data(), sizeof(text));
  char zeroed[sizeof(text)];
  compute->Copy(zeroed, buffer.data(), sizeof(text));
  ASSERT_TRUE(compute->Synchronize().ok());
  EXPECT_TRUE(copied->Wait().ok() && copied->WaitDone(absl::ZeroDuration()));
  EXPECT_STREQ(back, text);
  EXPECT_THAT(zeroed, testing::Each('\0'));
}

// Each stream in turn passes on what the other has copied, with one more byte changed.
TEST_P(CudaDevice, EventsOrderStreams) {
  constexpr int64_t kRounds = 60;
  const std::unique_ptr<Device> device = MakeDevice();
  const std::unique_ptr<Memory> host = device->NewHostMemory(0);
  const std::array streams = {device->NewStream(StreamKind::kCopy),
                              device->NewStream(StreamKind::kCopy)};
  const std::array cells = {*device->Allocate(kRounds), *device->Allocate(kRounds)};
  const Buffer seen = *host->Allocate(kRounds * kRounds);
  streams[0]->Zero(cells[1].data(), kRounds);
  std::unique_ptr<Event> last = streams[0]->Record();
  for (int64_t round = 0; round < kRounds; ++round) {
    const auto here = static_cast<size_t>(round % 2);
    Stream& stream = *streams[here];
    stream.WaitFor(*last);
    stream.Copy(cells[here].data(), cells[1 - here].data(), kRounds);
    stream.Fill(cells[here].data() + round, std::byte{1}, 1);
    stream.Copy(seen.data() + round * kRounds, cells[here].data(), kRounds);
    last = stream.Record();
  }
  ASSERT_TRUE(last->Wait().ok());
  for (int64_t round = 0; round < kRounds; ++round) {
    for (int64_t i = 0; i < kRounds; ++i) {
      ASSERT_EQ(seen.data()[round * kRounds + i], std::byte{i <= round}) << round << " " << i;
    }
  }
}

TEST_P(CudaDevice, WhatIsFreedInUseIsNotGivenOutAgainBeforeItIsDone) {
  constexpr int64_t kBytes = 100000;
  const std::unique_ptr<Device> device = MakeDevice(kBytes);
  const std::unique_ptr<Memory> host = device->NewHostMemory(kBytes);
  const std::unique_ptr<Stream> first = device->NewStream(StreamKind::kCopy);
  const std::unique_ptr<Stream> second = device->NewStream(StreamKind::kCompute);
  std::vector<std::byte> back(kBytes);
  {
    Buffer there = *device->Allocate(kBytes);
    Buffer here = *host->Allocate(kBytes);
    std::memset(here.data(), 5, kBytes);
    first->Copy(there.data(), here.data(), kBytes);
    const std::unique_ptr<Event> copied = first->Record();
    here.Reset();
    Buffer again = *host->Allocate(kBytes);  // everything that the budget allows: the same piece
    std::memset(again.data(), 6, kBytes);
    second->WaitFor(*copied);
    second->Copy(back.data(), there.data(), kBytes);
    first->Fill(there.data(), std::byte{7}, kBytes);
    there.Reset();
    Buffer other = *device->Allocate(kBytes);
    second->Fill(other.data(), std::byte{8}, kBytes);
    second->Copy(again.data(), other.data(), kBytes);
    ASSERT_TRUE(second->Synchronize().ok());
    EXPECT_EQ(again.data()[0], std::byte{8});
    EXPECT_EQ(again.data()[kBytes - 1], std::byte{8});
  }
  EXPECT_THAT(back, testing::Each(std::byte{5}));
}

TEST_P(CudaDevice, EventsTellWhen) {
  const std::unique_ptr<Device> device = MakeDevice();
  const Buffer buffer = *device->Allocate(1 << 20);
  const std::unique_ptr<Stream> stream = device->NewStream();
  const absl::Time before = RealClock().Now();
  const std::unique_ptr<Event> begin = stream->Record();
  stream->Zero(buffer.data(), 1 << 20);
  const std::unique_ptr<Event> end = stream->Record();
  ASSERT_TRUE(end->WaitDone(absl::Seconds(20)));
  const absl::Time after = RealClock().Now();
  constexpr absl::Duration kTolerance = absl::Milliseconds(100);
  EXPECT_LE(begin->at(), end->at());
  EXPECT_GE(begin->at(), before - kTolerance);
  EXPECT_LE(end->at(), after + kTolerance);
}

// As after the device has recorded the time again.
TEST_P(CudaDevice, EventsBeforeTheClocksBaseTellWhenToo) {
  ManualClock clock;
  const auto earlier = *gpu::CudaContext::Create(0, clock);
  const cudaEvent_t event = *earlier->TakeEvent();
  const cudaStream_t stream = *earlier->NewStream(/*copies=*/false);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  const auto later = *gpu::CudaContext::Create(0, clock);
  EXPECT_LT(later->TimeOf(event), clock.Now());
  EXPECT_GT(earlier->TimeOf(event), clock.Now());
  earlier->DestroyStream(stream);
  earlier->GiveEvent(event);
}

TEST_P(CudaDevice, LooksAtEventsWithoutWaiting) {
  const std::unique_ptr<Device> device = MakeDevice();
  const Buffer buffer = *device->Allocate(1 << 20);
  const std::unique_ptr<Stream> stream = device->NewStream();
  stream->Zero(buffer.data(), 1 << 20);
  const std::unique_ptr<Event> event = stream->Record();
  const absl::Time deadline = RealClock().Now() + absl::Seconds(20);
  while (!event->WaitDone(absl::ZeroDuration())) {
    ASSERT_LT(RealClock().Now(), deadline);
  }
  EXPECT_TRUE(event->Wait().ok());
}

TEST_P(CudaDevice, IsDescribed) {
  const std::unique_ptr<Device> device = MakeDevice();
  const gpu::GpuDescription& gpu = GpuOf(*device);
  EXPECT_EQ(device->name(), "cuda:0");
  EXPECT_FALSE(gpu.name.empty());
  EXPECT_GE(gpu.capability, 80);
  EXPECT_GT(gpu.multiprocessors, 0);
  EXPECT_GE(gpu.shared_bytes, 48 << 10);
  EXPECT_THAT(gpu.pci_address, testing::ContainsRegex("^[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:"));
  const absl::StatusOr<gpu::GpuDescriptions> all = gpu::DescribeGpus();
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->gpus[0].name, gpu.name);
  EXPECT_EQ(all->runtime_version, CUDART_VERSION);
  const absl::StatusOr<gpu::GpuDescription> none = gpu::DescribeGpu(1000);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("cuda:1000"));
}

}  // namespace
}  // namespace shoal::worker
