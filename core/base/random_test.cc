#include "core/base/random.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"

namespace shoal {
namespace {

TEST(Random, SameSeedSameNumbersOtherStreamOthers) {
  Random a(7), b(7), c(7, 1);
  const uint64_t first = a.Next();
  EXPECT_EQ(first, b.Next());
  EXPECT_NE(first, c.Next());
}

TEST(Random, MomentsAreRight) {
  Random random(1);
  double sum = 0, squares = 0, uniform = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.Normal();
    sum += x;
    squares += x * x;
    uniform += random.Uniform();
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
  EXPECT_NEAR(uniform / kCount, 0.5, 0.005);
}

TEST(Random, ShuffleIsAPermutation) {
  Random random(3);
  std::vector<int> items(100);
  std::iota(items.begin(), items.end(), 0);
  std::vector<int> shuffled = items;
  random.Shuffle(shuffled);
  EXPECT_NE(shuffled, items);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, items);
}

TEST(SecureToken, DiffersEachTime) {
  EXPECT_EQ(SecureToken().size(), 32u);
  EXPECT_NE(SecureToken(), SecureToken());
}

}  // namespace
}  // namespace shoal
