#include "worker/ops/cpu/simd.h"

#include <cmath>
#include <limits>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal::worker::cpu {
namespace {

TEST(Exp, IsWithinTwoUnitsInTheLastPlace) {
  Random random(1);
  for (int i = 0; i < 100000; ++i) {
    const auto x = static_cast<float>(random.Uniform() * 175 - 87);
    const double expected = std::exp(static_cast<double>(x));
    EXPECT_NEAR(Exp(x) / expected, 1.0, 2.5e-7) << x;
  }
  EXPECT_EQ(Exp(0.0f), 1.0f);
}

TEST(Exp, KeepsToItsRange) {
  EXPECT_EQ(Exp(-1e30f), 0.0f);
  EXPECT_EQ(Exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isfinite(Exp(1e30f)));
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(SumOf, TakesEveryTermOnce) {
  for (int64_t count = 0; count < 200; ++count) {
    EXPECT_EQ(SumOf(count, [](int64_t j) { return static_cast<float>(j); }),
              static_cast<float>(count * (count - 1) / 2));
  }
}

TEST(Store, RoundsLikeBFloat16) {
  Random random(2);
  for (int i = 0; i < 10000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
    BFloat16 stored;
    Store(value, &stored);
    EXPECT_EQ(stored.bits, BFloat16(value).bits) << value;
  }
}

}  // namespace
}  // namespace shoal::worker::cpu
