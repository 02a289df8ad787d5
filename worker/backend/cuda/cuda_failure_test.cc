// What a CUDA device reports if something is missing or fails, with a fake runtime that does.
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {
namespace {

using testing::HasSubstr;

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

TEST(CudaFailure, SaysThatThereIsNoDriver) {
  SetFakeGpus({.driver = false});
  const absl::Status status = MakeCudaDevice({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(TextOf(status), testing::StartsWith("no NVIDIA driver: "));
  EXPECT_EQ(DescribeGpus().status(), status);
}

TEST(CudaFailure, SaysThatThereIsNoGpu) {
  SetFakeGpus({.count = 0});
  const absl::Status status = MakeCudaDevice({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(TextOf(status), testing::StartsWith("no NVIDIA GPU: "));
  SetFakeGpus({.count = 2});
  EXPECT_EQ(TextOf(MakeCudaDevice({.gpu = 2}).status()),
            "cuda:2: there is no such GPU, this process sees 2; see CUDA_VISIBLE_DEVICES");
  const absl::StatusOr<std::unique_ptr<Device>> second = MakeCudaDevice({.gpu = 1});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->name(), "cuda:1");
}

// A thread uses the first GPU until it says otherwise, and the runtime sets that up for it.
TEST(CudaFailure, AThreadThatOnlyWaitsIsOnTheDevicesGpu) {
  SetFakeGpus({.count = 2});
  const std::unique_ptr<Device> second = *MakeCudaDevice({.gpu = 1});
  const std::unique_ptr<Stream> stream = second->NewStream();
  for (const bool looks : {true, false}) {
    const std::unique_ptr<Event> event = stream->Record();
    int gpu = -1;
    std::thread([&] {
      if (looks) {
        EXPECT_TRUE(event->WaitDone(absl::Seconds(10)));
      } else {
        EXPECT_TRUE(event->Wait().ok());
      }
      EXPECT_EQ(cudaGetDevice(&gpu), cudaSuccess);
    }).join();
    EXPECT_EQ(gpu, 1);
  }
}

TEST(CudaFailure, RefusesAGpuThatIsTooOld) {
  SetFakeGpus({.capability = 75});
  const absl::Status status = MakeCudaDevice({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(TextOf(status), HasSubstr("compute capability 7.5, but 8.0 is needed"));
  EXPECT_TRUE(DescribeGpus().ok());
}

TEST(CudaFailure, RefusesABudgetThatIsNotFree) {
  SetFakeGpus({.memory_bytes = int64_t{1} << 30});
  EXPECT_EQ(TextOf(MakeCudaDevice({.budget_bytes = int64_t{2} << 30}).status()),
            "cuda:0: a budget of 2147483648 B, but 1073741824 of 1073741824 B are free; lower it, "
            "or end what else uses the GPU");
  SetFakeGpus({.memory_bytes = int64_t{100} << 20});
  EXPECT_EQ(MakeCudaDevice({}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(CudaFailure, WhoSharesAGpuHasTheSameOfItWhoeverComesFirst) {
  SetFakeGpus({.memory_bytes = int64_t{8} << 30});
  const std::unique_ptr<Device> first = *MakeCudaDevice({.sharing = 2});
  const Buffer taken = *first->Allocate(first->budget_bytes());
  const std::unique_ptr<Device> second = *MakeCudaDevice({.sharing = 2});
  EXPECT_EQ(first->budget_bytes(), second->budget_bytes());
  EXPECT_GT(first->budget_bytes(), int64_t{3} << 30);
  EXPECT_TRUE(second->Allocate(second->budget_bytes()).ok());
  // Of what others have left, if that is less.
  EXPECT_LT((*MakeCudaDevice({}))->budget_bytes(), first->budget_bytes());
  const absl::Status status = MakeCudaDevice({.sharing = 20}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(TextOf(status), HasSubstr("20 processes share them"));
}

TEST(CudaFailure, AFailedCopyIsToldByEverythingAfterIt) {
  SetFakeGpus({});
  const std::unique_ptr<Device> device = *MakeCudaDevice({});
  const std::unique_ptr<Stream> stream = device->NewStream();
  const std::unique_ptr<Stream> other = device->NewStream(StreamKind::kCopy);
  {
    const Buffer there = *device->Allocate(1000);
    stream->Zero(there.data(), 1000);
    const std::unique_ptr<Event> before = stream->Record();
    ASSERT_TRUE(before->Wait().ok());
    FailWork(1, cudaErrorIllegalAddress);
    stream->Zero(there.data(), 1000);
    const std::unique_ptr<Event> after = stream->Record();
    EXPECT_TRUE(after->WaitDone(absl::Seconds(10)));
    const absl::Status status = after->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(TextOf(status), HasSubstr("cudaErrorIllegalAddress"));
    EXPECT_THAT(TextOf(status), HasSubstr("restart it"));
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(stream->Synchronize().ok()) << "a GPU that has failed stays so";
    }
    EXPECT_FALSE(other->Synchronize().ok());
    EXPECT_FALSE(device->Allocate(100).ok());
    (void)after->at();
  }
  EXPECT_EQ(device->allocated_bytes(), 0);
}

// (A GPU that reaches all memory of the host fills it.)
TEST(CudaFailure, SaysWhatItCannotFill) {
  SetFakeGpus({});
  const std::unique_ptr<Device> device = *MakeCudaDevice({});
  const std::unique_ptr<Stream> stream = device->NewStream();
  std::vector<std::byte> pageable(100);
  stream->Zero(pageable.data(), 100);
  // And with it all later copies.
  const absl::Status status = stream->Record()->Wait();
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuda:0: filling 100 B at 0x"));
  const std::unique_ptr<Stream> other = device->NewStream();
  EXPECT_TRUE(other->Synchronize().ok());
  other->WaitFor(*stream->Record());
  EXPECT_EQ(other->Synchronize(), status);
  EXPECT_EQ(stream->Synchronize(), status);
}

TEST(CudaFailure, AStreamIsOfUseAgainOnceItsErrorWasTold) {
  SetFakeGpus({});
  const std::unique_ptr<Device> device = *MakeCudaDevice({});
  const std::unique_ptr<Stream> stream = device->NewStream();
  const Buffer there = *device->Allocate(100);
  std::array<char, 100> back = {};
  stream->Zero(there.data(), 100);
  FailCall("cudaMemsetAsync", 1, cudaErrorMemoryAllocation);
  stream->Fill(there.data(), std::byte{1}, 100);
  stream->Fill(there.data(), std::byte{2}, 100);
  stream->Copy(back.data(), there.data(), 100);
  EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(back[0], 0) << "nothing was put behind what was refused";
  stream->Fill(there.data(), std::byte{3}, 100);
  stream->Copy(back.data(), there.data(), 100);
  EXPECT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(back[99], 3);
}

TEST(CudaFailure, WhatIsBeforeAFailureIsWaitedForAllTheSame) {
  SetFakeGpus({});
  const std::unique_ptr<Device> device = *MakeCudaDevice({});
  const std::unique_ptr<Memory> host = device->NewHostMemory(0);
  const std::unique_ptr<Stream> stream = device->NewStream();
  const Buffer there = *device->Allocate(100);
  const Buffer back = *host->Allocate(100);
  std::memset(back.data(), 7, 100);
  stream->Zero(there.data(), 100);
  stream->Copy(back.data(), there.data(), 100);
  FailCall("cudaMemsetAsync", 1, cudaErrorMemoryAllocation);
  stream->Fill(there.data(), std::byte{1}, 100);
  const std::unique_ptr<Event> event = stream->Record();
  EXPECT_TRUE(event->WaitDone(absl::Seconds(10)));
  EXPECT_EQ(back.data()[99], std::byte{0}) << "said to be done while it was under way";
  EXPECT_EQ(event->Wait().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(stream->Synchronize().ok());
}

// Earlier work may still be in flight then, and nothing built on it may count as good.
TEST(CudaFailure, AnEventThatCannotBeRecordedIsDoneWhenItsStreamIs) {
  for (const char* const function :
       {"cudaEventRecord", "cudaEventCreateWithFlags", "cudaSetDevice"}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE(testing::Message() << function << " " << seed);
      SetFakeGpus({.seed = seed});
      const std::unique_ptr<Device> device = *MakeCudaDevice({});
      const std::unique_ptr<Memory> host = device->NewHostMemory(0);
      const std::unique_ptr<Stream> stream = device->NewStream();
      const std::unique_ptr<Stream> other = device->NewStream(StreamKind::kCopy);
      const Buffer there = *device->Allocate(100);
      const Buffer back = *host->Allocate(100);
      for (const bool looks : {true, false}) {
        std::memset(back.data(), 7, 100);
        stream->Zero(there.data(), 100);
        stream->Copy(back.data(), there.data(), 100);
        FailCall(function, 1, cudaErrorMemoryAllocation);
        const std::unique_ptr<Event> event = stream->Record();
        if (looks) {
          EXPECT_TRUE(event->WaitDone(absl::Seconds(10)));
          EXPECT_EQ(back.data()[99], std::byte{0}) << "said to be done while it was under way";
        }
        EXPECT_EQ(event->Wait().code(), absl::StatusCode::kResourceExhausted);
        EXPECT_EQ(back.data()[99], std::byte{0}) << "told of while it was under way";
        other->WaitFor(*event);
        other->Fill(back.data(), std::byte{3}, 100);
        EXPECT_EQ(other->Synchronize().code(), absl::StatusCode::kResourceExhausted);
        EXPECT_EQ(back.data()[99], std::byte{0}) << "built on it";
        EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kResourceExhausted);
        EXPECT_TRUE(stream->Synchronize().ok());
      }
    }
  }
}

TEST(CudaFailure, AnEventThatCouldNotBeRecordedMayOutliveItsStream) {
  SetFakeGpus({});
  const std::unique_ptr<Device> device = *MakeCudaDevice({});
  std::unique_ptr<Stream> stream = device->NewStream();
  FailCall("cudaEventRecord", 1, cudaErrorMemoryAllocation);
  const std::unique_ptr<Event> event = stream->Record();
  stream.reset();
  EXPECT_TRUE(event->WaitDone(absl::ZeroDuration()));
  EXPECT_FALSE(event->Wait().ok());
}

// Does a little of everything; returns its first error.
absl::Status UseEverything() {
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeCudaDevice({}));
  const std::unique_ptr<Memory> host = device->NewHostMemory(0);
  const std::unique_ptr<Stream> compute = device->NewStream();
  const std::unique_ptr<Stream> copies = device->NewStream(StreamKind::kCopy);
  SHOAL_ASSIGN_OR_RETURN(Buffer there, device->Allocate(1000));
  SHOAL_ASSIGN_OR_RETURN(const Buffer large, device->Allocate(int64_t{30} << 20));
  SHOAL_ASSIGN_OR_RETURN(const Buffer here, host->Allocate(1000));
  std::memset(here.data(), 5, 1000);
  copies->Copy(there.data(), here.data(), 1000);
  compute->WaitFor(*copies->Record());
  compute->Copy(large.data(), there.data(), 1000);
  compute->Fill(there.data(), std::byte{6}, 1000);
  there.Reset();
  copies->WaitFor(*compute->Record());
  copies->Copy(here.data(), large.data(), 1000);
  SHOAL_RETURN_IF_ERROR(copies->Synchronize());
  SHOAL_RETURN_IF_ERROR(compute->Synchronize());
  return here.data()[999] == std::byte{5} ? absl::OkStatus() : Internal("wrong data");
}

// If any call fails, the caller gets an error or everything still works; nothing leaks.
TEST(CudaFailure, EveryCallMayFail) {
  int64_t told = 0;
  for (const char* function :
       {"cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaDeviceGetPCIBusId", "cudaSetDevice",
        "cudaMemGetInfo", "cudaMalloc", "cudaHostAlloc", "cudaDeviceGetStreamPriorityRange",
        "cudaStreamCreateWithPriority", "cudaStreamCreateWithFlags", "cudaEventCreateWithFlags",
        "cudaEventRecord", "cudaEventQuery", "cudaStreamWaitEvent", "cudaMemcpyAsync",
        "cudaMemsetAsync", "cudaStreamQuery"}) {
    for (int64_t number = 1; number <= 12; ++number) {
      SetFakeGpus({.seed = static_cast<uint64_t>(number)});
      FailCall(function, number, cudaErrorMemoryAllocation);
      const absl::Status status = UseEverything();
      told += status.ok() ? 0 : 1;
      EXPECT_NE(status.message(), "wrong data") << function << " " << number;
      const FakeGpuCounters counters = Counters();
      EXPECT_EQ(counters.allocated_bytes, 0) << function << " " << number;
      EXPECT_EQ(counters.host_bytes, 0) << function << " " << number;
      EXPECT_EQ(counters.streams, 0) << function << " " << number;
      EXPECT_EQ(counters.events, 0) << function << " " << number;
      EXPECT_EQ(cudaGetLastError(), cudaSuccess) << function << " " << number;
    }
  }
  EXPECT_GT(told, 30);
}

TEST(CudaFailure, AnyWorkMayFail) {
  for (int64_t number = 1; number <= 5; ++number) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      SetFakeGpus({.seed = seed});
      FailWork(number, cudaErrorECCUncorrectable);
      const absl::Status status = UseEverything();
      EXPECT_EQ(status.ok(), number > 4) << number << " " << seed << " " << status;
    }
  }
}

}  // namespace
}  // namespace shoal::worker::cuda
