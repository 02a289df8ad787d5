#include "core/base/nf4.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace shoal {
namespace {

// One block, encoded and decoded.
struct Coded {
  explicit Coded(const std::vector<float>& block)
      : codes(static_cast<size_t>(Nf4CodeBytes(std::ssize(block)))),
        scale(EncodeNf4(block, codes.data())),
        values(block.size()) {
    DecodeNf4(scale, codes.data(), std::ssize(block), values.data());
  }
  int code(size_t i) const { return i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15; }

  std::vector<uint8_t> codes;
  float scale;
  std::vector<float> values;
};

TEST(Nf4, ALevelIsItself) {
  std::vector<float> block;
  for (const float level : kNf4Levels) {
    block.push_back(level * 0.5F);
  }
  const Coded coded(block);
  EXPECT_EQ(coded.scale, 0.5F);
  EXPECT_EQ(coded.values, block);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(coded.code(static_cast<size_t>(i)), i);
  }
}

TEST(Nf4, TakesTheNearestAndOfTwoTheLower) {
  for (size_t i = 0; i + 1 < kNf4Levels.size(); ++i) {
    const float middle = (kNf4Levels[i] + kNf4Levels[i + 1]) / 2;
    const float infinity = std::numeric_limits<float>::infinity();
    const Coded coded(
        {1.0F, middle, std::nextafter(middle, infinity), std::nextafter(middle, -infinity)});
    EXPECT_EQ(coded.code(1), static_cast<int>(i));
    EXPECT_EQ(coded.code(2), static_cast<int>(i + 1));
    EXPECT_EQ(coded.code(3), static_cast<int>(i));
  }
}

TEST(Nf4, TakesWhatAMatrixHasLeftForABlock) {
  const Coded coded({-2.0F, 0.0F, 2.0F});
  EXPECT_EQ(coded.codes, (std::vector<uint8_t>{0x07, 0xF0}));
  EXPECT_EQ(coded.values, (std::vector<float>{-2.0F, 0.0F, 2.0F}));
}

TEST(Nf4, KeepsZerosAndWhatIsNotFinite) {
  const Coded zeros(std::vector<float>(64, 0.0F));
  EXPECT_EQ(zeros.values, std::vector<float>(64, 0.0F));
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const Coded coded({1.0F, bad, 2.0F});
    EXPECT_FALSE(std::isfinite(coded.scale));
    EXPECT_FALSE(std::isfinite(coded.values[0]) && std::isfinite(coded.values[1]));
  }
}

TEST(Nf4, AWholeBlockHasTheBitsOfItsParts) {
  for (const float scale : {0.7F, 3e38F, 1e-40F, std::numeric_limits<float>::infinity()}) {
    std::vector<uint8_t> codes;
    for (uint32_t i = 0; i < kNf4Block / 2; ++i) {
      codes.push_back(static_cast<uint8_t>(i * 2654435761U >> 24));
    }
    std::vector<float> whole(kNf4Block);
    std::vector<float> parts(kNf4Block);
    DecodeNf4(scale, codes.data(), kNf4Block, whole.data());
    DecodeNf4(scale, codes.data(), 10, parts.data());
    DecodeNf4(scale, codes.data() + 5, kNf4Block - 10, parts.data() + 10);
    for (size_t i = 0; i < whole.size(); ++i) {
      const bool none = std::isnan(parts[i]);  // zero times infinity, of any sign
      EXPECT_TRUE(none ? std::isnan(whole[i]) : whole[i] == parts[i]) << scale << " " << i;
    }
  }
}

TEST(Nf4, RoundsOnceToBfloat16) {
  std::vector<float> block;
  for (int i = 0; i < 64; ++i) {
    block.push_back(std::sin(static_cast<float>(i)));
  }
  const Coded coded(block);
  std::vector<BFloat16> narrow(block.size());
  DecodeNf4(coded.scale, coded.codes.data(), 64, narrow.data());
  for (size_t i = 0; i < block.size(); ++i) {
    EXPECT_EQ(narrow[i].bits, BFloat16(coded.values[i]).bits);
    EXPECT_NEAR(coded.values[i], block[i], 0.16 * coded.scale);
  }
}

}  // namespace
}  // namespace shoal
