#include "worker/backend/cuda/emulation/block.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/emulation/emulated_gpu.h"
#include "worker/backend/cuda/emulation/sample.h"
#include "worker/backend/cuda/testing/on_device.h"

namespace shoal::worker::cuda {
namespace {

class BlockTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { SetEmulatedGpus({.seed = GetParam()}); }
};
INSTANTIATE_TEST_SUITE_P(Seeds, BlockTest, testing::Range(uint64_t{1}, uint64_t{9}));

TEST_P(BlockTest, ACopyThatIsNotWaitedForHasNotArrived) {
  const OnDevice<uint16_t> a(std::vector<uint16_t>(16 * 16));
  const OnDevice<uint16_t> b(std::vector<uint16_t>(16 * 8));
  const OnDevice<float> d(std::vector<float>(16 * 8, -1));
  ASSERT_EQ(sample::Product(nullptr, d.data(), a.data(), b.data(), false), cudaSuccess);
  for (const float value : d.Read()) {
    EXPECT_TRUE(std::isnan(value));
  }
}

TEST_P(BlockTest, SharedMemoryIsPoisonedForEachBlock) {
  const OnDevice<float> to({-1, -1, 0});
  ASSERT_EQ(sample::LookAtShared(nullptr, to.data()), cudaSuccess);
  const std::vector<float> seen = to.Read();
  EXPECT_TRUE(std::isnan(seen[0]));
  EXPECT_EQ(seen[1], 0);
  EXPECT_EQ(seen[2], 64);
}

TEST_P(BlockTest, SaysWhoIsMissing) {
  const OnDevice<float> out(std::vector<float>(128));
  const auto run = [&out](sample::Wrong wrong) {
    (void)sample::RunWrong(nullptr, wrong, out.data());
    (void)cudaDeviceSynchronize();
  };
  EXPECT_DEATH(run(sample::Wrong::kEarlyReturn),
               "thread 3 \\(warp 0 lane 3\\) has returned while its block waits");
  EXPECT_DEATH(run(sample::Wrong::kReturnsFromBlock),
               "thread 32 \\(warp 1 lane 0\\) has returned while its block waits");
  EXPECT_DEATH(run(sample::Wrong::kDifferentPlaces),
               "comes to SyncBlock at .*sample.cu:[0-9]+ "
               "while its block waits for it at SyncBlock");
  EXPECT_DEATH(run(sample::Wrong::kOutOfShared), "");
}

}  // namespace
}  // namespace shoal::worker::cuda
