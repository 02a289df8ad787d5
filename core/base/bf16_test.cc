#include "core/base/bf16.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace shoal {
namespace {

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(BFloat16(1.0f).bits, 0x3F80);
  EXPECT_EQ(BFloat16(1.0f + 0x1p-8f).bits, 0x3F80);             // tie, even stays
  EXPECT_EQ(BFloat16(1.0f + 3 * 0x1p-8f).bits, 0x3F82);         // tie, rounds to even
  EXPECT_EQ(BFloat16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3F81);  // above the tie
}

TEST(BFloat16, KeepsSpecialValues) {
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(std::numeric_limits<float>::infinity()))));
  EXPECT_TRUE(std::signbit(static_cast<float>(BFloat16(-0.0f))));
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(std::numeric_limits<float>::max()))));
}

TEST(BFloat16, EveryValueSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    BFloat16 value;
    value.bits = static_cast<uint16_t>(bits);
    const auto f = static_cast<float>(value);
    if (!std::isnan(f)) {
      EXPECT_EQ(BFloat16(f).bits, bits);
    }
  }
}

TEST(Half, KnownValues) {
  EXPECT_EQ(HalfToFloat(0x3C00), 1.0f);
  EXPECT_EQ(HalfToFloat(0xC000), -2.0f);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x7BFF), 65504.0f);
  EXPECT_TRUE(std::isinf(HalfToFloat(0x7C00)));
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7E00)));
}

}  // namespace
}  // namespace shoal
