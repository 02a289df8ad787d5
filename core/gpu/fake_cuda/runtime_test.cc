// The fake runtime: what it tolerates and what not.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/gpu/kernel/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::gpu {
namespace {

class RuntimeTest : public testing::Test {
 protected:
  void SetUp() override { SetFakeGpus({}); }
};

float* Floats(int64_t count) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(float)), cudaSuccess);
  return static_cast<float*>(data);
}

float* PinnedFloats(int64_t count) {
  void* data = nullptr;
  EXPECT_EQ(cudaHostAlloc(&data, static_cast<size_t>(count) * sizeof(float), 0), cudaSuccess);
  return static_cast<float*>(data);
}

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

cudaEvent_t NewEvent(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, flags), cudaSuccess);
  return event;
}

// What the fake says about a crash, unless a sanitizer says it.
std::string CrashText(const std::string& text) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  (void)text;
  return "";
#else
  return text;
#endif
}

// One stream adds to what the other copies there, with or without waiting for it.
float CopyThenAdd(uint64_t seed, bool waits) {
  SetFakeGpus({.seed = seed});
  float* from = PinnedFloats(1);
  float* to = PinnedFloats(1);
  float* there = Floats(1);
  *from = 5;
  EXPECT_EQ(cudaMemset(there, 0, sizeof(float)), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const cudaStream_t copies = NewStream();
  const cudaStream_t compute = NewStream();
  const cudaEvent_t copied = NewEvent();
  EXPECT_EQ(cudaMemcpyAsync(there, from, sizeof(float), cudaMemcpyHostToDevice, copies),
            cudaSuccess);
  EXPECT_EQ(cudaEventRecord(copied, copies), cudaSuccess);
  if (waits) {
    EXPECT_EQ(cudaStreamWaitEvent(compute, copied, 0), cudaSuccess);
  }
  EXPECT_EQ(sample::AddTo(compute, there, there, 1, 1), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(to, there, sizeof(float), cudaMemcpyDeviceToHost, compute),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(compute), cudaSuccess);
  return *to;
}

TEST_F(RuntimeTest, EventsOrderStreams) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    ASSERT_EQ(CopyThenAdd(seed, true), 6);
  }
}

TEST_F(RuntimeTest, AMissingWaitShowsUnderSomeSeeds) {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    wrong += CopyThenAdd(seed, false) != 6 ? 1 : 0;
  }
  EXPECT_GT(wrong, 5);
  EXPECT_LT(wrong, 50);
}

TEST_F(RuntimeTest, PinnedMemoryIsReadWhenTheCopyRuns) {
  float* pinned = PinnedFloats(1);
  float* there = Floats(2);
  float pageable = 1;
  *pinned = 1;
  const cudaStream_t stream = NewStream();
  ASSERT_EQ(cudaMemcpyAsync(there, pinned, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(there + 1, &pageable, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  *pinned = 2;
  pageable = 2;
  float back[2] = {};
  ASSERT_EQ(cudaMemcpyAsync(back, there, 8, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(back[0], 2);  // too late to change it
  EXPECT_EQ(back[1], 1);  // copied on the call
}

TEST_F(RuntimeTest, NothingRunsBeforeItIsWaitedFor) {
  float* pinned = PinnedFloats(1);
  float* there = Floats(1);
  *pinned = -1;
  const cudaStream_t stream = NewStream();
  ASSERT_EQ(cudaMemsetAsync(there, 0, 4, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned, there, 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(*pinned, -1);
  cudaError_t error = cudaErrorNotReady;
  for (int i = 0; i < 1000 && error == cudaErrorNotReady; ++i) {
    error = cudaStreamQuery(stream);
  }
  EXPECT_EQ(error, cudaSuccess);
  EXPECT_EQ(*pinned, 0);
}

TEST_F(RuntimeTest, AFullStreamRunsByItself) {
  float* there = Floats(1);
  const cudaStream_t stream = NewStream();
  ASSERT_EQ(cudaMemsetAsync(there, 0, 4, stream), cudaSuccess);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(sample::AddTo(stream, there, there, 1, 1), cudaSuccess);
  }
  float back = 0;
  ASSERT_EQ(cudaMemcpyAsync(&back, there, 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(back, 5000);
}

TEST_F(RuntimeTest, TheNullStreamIsOrderedWithStreamsThatAskForIt) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SetFakeGpus({.seed = seed});
    float* there = Floats(1);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaMemset(there, 0, 4), cudaSuccess);
    ASSERT_EQ(sample::AddTo(stream, there, there, 1, 1), cudaSuccess);
    float back = 0;
    ASSERT_EQ(cudaMemcpy(&back, there, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(back, 1);
  }
}

TEST_F(RuntimeTest, TheHostReachesNoMemoryOfAGpu) {
  float* there = Floats(128);
  const auto touch = [there] { *static_cast<volatile float*>(there) = 1; };
  EXPECT_DEATH(touch(), CrashText("the host touched 0x.*, 0 B into the 512 B"));
  EXPECT_EQ(cudaMemset(there, 0, 512), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_DEATH(touch(), CrashText("the host touched"));
  // Nor may a kernel touch what lies behind it.
  const auto add = [there] {
    (void)sample::AddTo(nullptr, there, there, 1, 129);
    (void)cudaDeviceSynchronize();
  };
  EXPECT_DEATH(add(), CrashText("block \\(1, 0, 0\\) thread 0 .* 0 B behind the 512 B"));
}

TEST_F(RuntimeTest, NewMemoryIsPoisoned) {
  float* there = Floats(3);
  uint32_t back[3] = {};
  ASSERT_EQ(cudaMemcpy(back, there, 12, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_THAT(back, testing::Each(0xFFFFFFFFu));
}

TEST_F(RuntimeTest, RefusesWhatTheRuntimeRefuses) {
  float* there = Floats(4);
  float here[8] = {};
  const cudaStream_t stream = NewStream();
  EXPECT_EQ(cudaMemcpyAsync(there, here, 32, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(there, here, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(here, 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(here), cudaErrorInvalidValue);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  void* much = nullptr;
  EXPECT_EQ(cudaMalloc(&much, size_t{5} << 30), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
  EXPECT_EQ(sample::AddTo(nullptr, there, there, 1, 0), cudaErrorInvalidConfiguration);
  // A launch reports an earlier error that nobody has asked for.
  EXPECT_EQ(cudaMemset(here, 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(sample::AddTo(nullptr, there, there, 1, 4), cudaErrorInvalidValue);
  EXPECT_EQ(sample::AddTo(nullptr, there, there, 1, 4), cudaSuccess);
}

TEST_F(RuntimeTest, FailsOnDemand) {
  FailCall("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  EXPECT_EQ(Counters().allocations, 2);
}

TEST_F(RuntimeTest, AFailedKernelFailsAllThatFollows) {
  float* there = Floats(1);
  const cudaStream_t stream = NewStream();
  FailWork(2, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemsetAsync(there, 0, 4, stream), cudaSuccess);
  EXPECT_EQ(sample::AddTo(stream, there, there, 1, 1), cudaSuccess);
  EXPECT_EQ(sample::AddTo(stream, there, there, 1, 1), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorIllegalAddress);
  SetFakeGpus({});
  EXPECT_EQ(cudaMalloc(&data, 4), cudaSuccess);
}

TEST_F(RuntimeTest, WithoutADriverOrAGpu) {
  int count = -1;
  SetFakeGpus({.driver = false});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
  SetFakeGpus({.count = 0});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  (void)cudaGetLastError();
}

TEST_F(RuntimeTest, PinsWhatMayBeWrittenAlone) {
  constexpr size_t kBytes = 4096;
  for (const int protection : {PROT_READ, PROT_READ | PROT_WRITE}) {
    void* const memory =
        ::mmap(nullptr, kBytes, protection, MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    EXPECT_EQ(cudaHostRegister(memory, kBytes, cudaHostRegisterReadOnly), cudaErrorNotSupported);
    const bool writable = protection != PROT_READ;
    EXPECT_EQ(cudaHostRegister(memory, kBytes, cudaHostRegisterPortable),
              writable ? cudaSuccess : cudaErrorInvalidValue);
    EXPECT_EQ(cudaHostUnregister(memory),
              writable ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
    ::munmap(memory, kBytes);
  }
  (void)cudaGetLastError();
}

TEST_F(RuntimeTest, EachGpuHasItsOwn) {
  SetFakeGpus({.count = 2});
  const cudaStream_t stream = NewStream();
  float* there = Floats(1);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(sample::AddTo(stream, there, there, 1, 1), cudaErrorInvalidResourceHandle);
  float* other = Floats(1);
  ASSERT_EQ(cudaMemset(other, 0, 4), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(there, other, 4, cudaMemcpyDeviceToDevice), cudaSuccess);
  float back = 1;
  EXPECT_EQ(cudaMemcpy(&back, there, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(back, 0);
}

TEST_F(RuntimeTest, TellsTheTimeBetweenEvents) {
  const cudaStream_t stream = NewStream();
  const cudaEvent_t begin = NewEvent(cudaEventDefault);
  const cudaEvent_t end = NewEvent(cudaEventDefault);
  float* there = Floats(1);
  ASSERT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(there, 0, 4, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
  ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GT(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, NewEvent()), cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
}

TEST_F(RuntimeTest, SharesMemoryByHandlesWithinTheProcess) {
  float* there = Floats(100);
  cudaIpcMemHandle_t handle = {};
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, there + 10), cudaErrorInvalidValue) << "within it";
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, there), cudaSuccess);
  void* opened = nullptr;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess), cudaSuccess);
    EXPECT_EQ(opened, there) << "where the allocation begins";
  }
  EXPECT_EQ(FindAllocation(there + 99)->begin, static_cast<void*>(there));
  EXPECT_EQ(FindAllocation(there + 99)->bytes, 400);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cudaFree(there), cudaErrorInvalidValue) << "it is open";
    EXPECT_EQ(cudaIpcCloseMemHandle(opened), cudaSuccess);
  }
  EXPECT_EQ(cudaIpcCloseMemHandle(opened), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(there), cudaSuccess);
  EXPECT_EQ(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaErrorInvalidResourceHandle)
      << "it is gone";
  float here = 0;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, &here), cudaErrorInvalidValue);
  EXPECT_EQ(FindAllocation(&here), std::nullopt);
  EXPECT_EQ(cudaIpcOpenMemHandle(&opened, handle, 0), cudaErrorInvalidValue) << "without the flag";
  (void)cudaGetLastError();
}

TEST_F(RuntimeTest, AnotherProcesssHandleIsNotMapped) {
  float* there = Floats(1);
  cudaIpcMemHandle_t handle = {};
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, there), cudaSuccess);
  const pid_t child = fork();
  if (child == 0) {
    void* opened = nullptr;
    _exit(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess) ==
                  cudaErrorMapBufferObjectFailed
              ? 0
              : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(RuntimeTest, Counts) {
  float* there = Floats(4);
  float here[4] = {};
  ASSERT_EQ(cudaMemcpy(there, here, 16, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(here, there, 8, cudaMemcpyDeviceToHost), cudaSuccess);
  ASSERT_EQ(sample::AddTo(nullptr, there, there, 1, 1), cudaSuccess);
  const FakeGpuCounters counters = Counters();
  EXPECT_EQ(counters.bytes_to_device, 16);
  EXPECT_EQ(counters.bytes_to_host, 8);
  EXPECT_EQ(counters.launches, 1);
  EXPECT_EQ(counters.allocated_bytes, 512);
  ASSERT_EQ(cudaFree(there), cudaSuccess);
  EXPECT_EQ(Counters().allocated_bytes, 0);
}

TEST_F(RuntimeTest, TakesCallsOfSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      float* there = Floats(1);
      const cudaStream_t stream = NewStream();
      ASSERT_EQ(cudaMemsetAsync(there, 0, 4, stream), cudaSuccess);
      for (int i = 0; i < 100; ++i) {
        ASSERT_EQ(sample::AddTo(stream, there, there, static_cast<float>(t), 1), cudaSuccess);
      }
      float back = 0;
      ASSERT_EQ(cudaMemcpyAsync(&back, there, 4, cudaMemcpyDefault, stream), cudaSuccess);
      EXPECT_EQ(back, static_cast<float>(100 * t));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace shoal::gpu
