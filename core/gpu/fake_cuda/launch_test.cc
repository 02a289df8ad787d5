// What the fake runtime refuses of launches, copies and events as hardware does, and what ends
// the process.
#include "core/gpu/fake_cuda/launch.h"

#include <thread>
#include <vector>

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/gpu/kernel/sample.h"
#include "core/gpu/launch_limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::gpu {
namespace {

using fake_cuda::Extent;

class LaunchTest : public testing::Test {
 protected:
  void SetUp() override { SetFakeGpus({}); }
};

uint32_t* Words(int64_t count) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(uint32_t)), cudaSuccess);
  return static_cast<uint32_t*>(data);
}

// For a launch without effect.
cudaError_t Put(Extent grid, int threads, int64_t shared_bytes = 0) {
  static const int kernel = 0;
  fake_cuda::PutLaunch(nullptr, grid, threads, shared_bytes, &kernel, [] {});
  return cudaGetLastError();
}

TEST_F(LaunchTest, GridsAndBlocksThatHardwareHasNotAreRefused) {
  SetFakeGpus({.runs = Runs::kNone});
  EXPECT_EQ(Put({}, 32), cudaSuccess);
  EXPECT_EQ(Put({.x = kMaxGridX}, 1024), cudaSuccess);
  EXPECT_EQ(Put({.x = 1, .y = 65535, .z = 65535}, 32), cudaSuccess);
  for (const Extent& grid :
       {Extent{.x = 0}, Extent{.y = 0}, Extent{.z = 0}, Extent{.x = kMaxGridX + 1},
        Extent{.y = 65536}, Extent{.z = 65536}, Extent{.x = -1}, Extent{.x = (1LL << 32) + 1}}) {
    EXPECT_EQ(Put(grid, 32), cudaErrorInvalidConfiguration);
    EXPECT_FALSE(IsGrid(grid.x, grid.y, grid.z));
  }
  EXPECT_EQ(Put({}, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Put({}, 1056), cudaErrorInvalidConfiguration);
}

TEST_F(LaunchTest, SharedMemoryThatWasNotAskedForIsRefused) {
  EXPECT_EQ(Put({}, 32, 32 << 10), cudaSuccess);
  EXPECT_EQ(Put({}, 32, 48 << 10), cudaErrorInvalidValue) << "with what kernels may declare";
  EXPECT_EQ(Put({}, 32, 100 << 10), cudaErrorInvalidValue);
  EXPECT_EQ(Put({}, 32, -1), cudaErrorInvalidValue);
}

TEST_F(LaunchTest, SharedMemoryIsAskedForOnceAKernelAndGpu) {
  SetFakeGpus({.count = 2, .shared_bytes = 99 << 10});
  const auto touch = [](int64_t bytes) { return sample::TouchShared(nullptr, Words(32), bytes); };
  const auto questions = [] { return Counters().shared_questions; };
  EXPECT_EQ(touch(1 << 10), cudaSuccess);
  EXPECT_EQ(questions(), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(touch(64 << 10), cudaSuccess);
    EXPECT_EQ(touch(80 << 10), cudaSuccess);
  }
  EXPECT_LE(questions(), 2) << "another test may have asked before";
  const int64_t before = questions();
  // Requests beyond the GPU are refused each time, and change nothing about what was allowed.
  for (int i = 1; i <= 2; ++i) {
    EXPECT_EQ(touch(200 << 10), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "it was told";
  }
  EXPECT_EQ(touch(80 << 10), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const int64_t elsewhere = questions();
  EXPECT_EQ(touch(90 << 10), cudaSuccess);
  EXPECT_EQ(touch(90 << 10), cudaSuccess);
  EXPECT_EQ(questions(), elsewhere + 1);
  EXPECT_GE(elsewhere, before);
}

TEST_F(LaunchTest, ThreadsMayAskAtTheSameTime) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      uint32_t* const there = Words(32);
      for (int64_t i = 0; i < 50; ++i) {
        ASSERT_EQ(sample::TouchShared(nullptr, there, (100 + t + i) << 10), cudaSuccess);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(LaunchTest, CopiesAndFillsOfNothingsAddressAreRefused) {
  uint32_t* const there = Words(4);
  uint32_t here[4] = {};
  EXPECT_EQ(cudaMemcpy(nullptr, here, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(there, nullptr, 4, cudaMemcpyDefault, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(there, here, static_cast<size_t>(-4), cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(nullptr, 0, 4, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(there, 0, 17), cudaErrorInvalidValue) << "a byte behind it";
  EXPECT_EQ(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDefault), cudaSuccess);
  (void)cudaGetLastError();
}

TEST_F(LaunchTest, EventsAreOfTheGpuThatWasCurrent) {
  SetFakeGpus({.count = 2});
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess) << "streams of any GPU may wait";
  (void)cudaGetLastError();
}

TEST_F(LaunchTest, WaitingForWhatWasNeverRecordedEndsTheProcess) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  EXPECT_DEATH((void)cudaStreamWaitEvent(nullptr, event, 0), "never recorded");
  EXPECT_DEATH((void)cudaEventSynchronize(event), "never recorded");
  EXPECT_DEATH((void)cudaEventQuery(event), "never recorded");
}

TEST_F(LaunchTest, PinnedMemoryThatACopyIsStillToUseIsNotGivenBack) {
  uint32_t* const there = Words(4);
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 16, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(there, pinned, 16, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  EXPECT_DEATH((void)cudaFreeHost(pinned), "still to use it");
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(LaunchTest, CopiesThatOnlySeemAsynchronousAreCounted) {
  uint32_t* const there = Words(1);
  uint32_t here = 0;
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 4, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(there, pinned, 4, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(there, &here, 4, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(Counters().pageable_copies, 0);
  ASSERT_EQ(cudaMemcpyAsync(there, &here, 4, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  EXPECT_EQ(Counters().pageable_copies, 1);
}

TEST_F(LaunchTest, WorkThatIsNotRunIsCheckedAllTheSame) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "so many addresses are more than ThreadSanitizer leaves";
#endif
  SetFakeGpus({.memory_bytes = int64_t{1} << 45, .runs = Runs::kNone});
  void* vast = nullptr;
  ASSERT_EQ(cudaMalloc(&vast, size_t{1} << 41), cudaSuccess);
  auto* const floats = static_cast<float*>(vast);
  EXPECT_EQ(sample::AddTo(nullptr, floats, floats, 1, 128 * kMaxGridX), cudaSuccess);
  EXPECT_EQ(sample::AddTo(nullptr, floats, floats, 1, 128 * kMaxGridX + 1),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaMemset(vast, 0, size_t{1} << 42), cudaErrorInvalidValue);
  (void)cudaGetLastError();
  EXPECT_EQ(cudaMemset(vast, 0, size_t{1} << 41), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaFree(vast), cudaSuccess);
}

TEST_F(LaunchTest, TheFirstAndTheLastBlockMayRunAlone) {
  SetFakeGpus({.runs = Runs::kEnds});
  constexpr size_t kCount = 128 * 5;  // a block has 128
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, kCount * sizeof(float)), cudaSuccess);
  auto* const there = static_cast<float*>(data);
  ASSERT_EQ(cudaMemset(data, 0, kCount * sizeof(float)), cudaSuccess);
  ASSERT_EQ(sample::AddTo(nullptr, there, there, 1, static_cast<int64_t>(kCount)), cudaSuccess);
  std::vector<float> back(kCount);
  ASSERT_EQ(cudaMemcpy(back.data(), data, kCount * sizeof(float), cudaMemcpyDeviceToHost),
            cudaSuccess);
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i], i < 128 || i >= 4 * 128 ? 1.0F : 0.0F) << i;
  }
}

}  // namespace
}  // namespace shoal::gpu
