#include "core/gpu/fake_cuda/block.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/gpu/kernel/sample.h"
#include "core/gpu/testing/on_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::gpu {
namespace {

class BlockTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { SetFakeGpus({.seed = GetParam()}); }
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

#ifdef __SANITIZE_THREAD__
// Independent of the order of threads.
TEST_P(BlockTest, BarriersThatAreMissingAreRaces) {
  const OnDevice<int> from(std::vector<int>(128, 1));
  const OnDevice<int> to(std::vector<int>(128, -1));
  for (const int shift : {1, 31, 32, 127}) {
    ASSERT_EQ(sample::Rotate(nullptr, to.data(), from.data(), shift, true), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto run = [&] {
      (void)sample::Rotate(nullptr, to.data(), from.data(), shift, false);
      (void)cudaDeviceSynchronize();
      std::exit(0);  // or, if something was found, with the sanitizer's exit code
    };
    EXPECT_EXIT(run(), testing::ExitedWithCode(66), "data race") << shift;
  }
}
#else
TEST(Barriers, ThatAreMissingShowUnderSomeSeeds) {
  std::vector<int> values(128);
  std::iota(values.begin(), values.end(), 0);
  for (const int shift : {1, 31, 32, 64, 96, 127}) {
    std::vector<int> expected = values;
    std::rotate(expected.begin(), expected.begin() + shift, expected.end());
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SetFakeGpus({.seed = seed});
      const OnDevice<int> from(values);
      const OnDevice<int> to(std::vector<int>(128, -1));
      ASSERT_EQ(sample::Rotate(nullptr, to.data(), from.data(), shift, true), cudaSuccess);
      ASSERT_EQ(to.Read(), expected);
      ASSERT_EQ(sample::Rotate(nullptr, to.data(), from.data(), shift, false), cudaSuccess);
      wrong += to.Read() == expected ? 0 : 1;
    }
    EXPECT_GT(wrong, 0) << shift;
  }
}
#endif

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
               "while its block waits for it at SyncBlock at .*sample.cu:[0-9]+");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EXPECT_DEATH(run(sample::Wrong::kOutOfShared), "");
  EXPECT_DEATH(run(sample::Wrong::kOverflow), "");
#else
  EXPECT_DEATH(run(sample::Wrong::kOverflow), "thread [0-9]+ .* overflowed an integer");
  EXPECT_DEATH(run(sample::Wrong::kOutOfShared),
               "thread [0-9]+ .* touched 0x.*, 0 B behind the block's dynamic shared memory");
#endif
}

}  // namespace
}  // namespace shoal::gpu
