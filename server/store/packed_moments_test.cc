#include "server/store/packed_moments.h"

#include <cmath>
#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

constexpr auto kBlock = static_cast<size_t>(plan::kPackedBlock);
constexpr auto kBytes = static_cast<size_t>(plan::kPackedBlockBytes);

// As packing leaves them.
std::vector<float> Rounded(const std::vector<float>& values, bool second) {
  std::vector<std::byte> packed(values.size() / kBlock * kBytes);
  std::vector<float> rounded(values.size());
  PackMoments(values.data(), packed.data(), std::ssize(values), second);
  UnpackMoments(packed.data(), rounded.data(), std::ssize(values), second);
  return rounded;
}

// As a step leaves a block of second moments.
std::vector<float> Drawn(const std::vector<float>& values, uint32_t draws) {
  PackedBlock packed;
  std::vector<float> drawn(kBlock);
  PackTile<DrawnSecondMoment>(values.data(), &packed, plan::kPackedBlock, draws);
  UnpackTile<SecondMoment>(&packed, drawn.data(), plan::kPackedBlock);
  return drawn;
}

// Over many orders of magnitude, within blocks and among them.
std::vector<float> Values(uint64_t seed, bool second) {
  Random random(seed);
  std::vector<float> values(256 * kBlock);
  for (size_t i = 0; i < values.size(); ++i) {
    const double size =
        std::pow(10.0, -static_cast<double>(i / kBlock % 30) - 9 * random.Uniform());
    values[i] = static_cast<float>(random.Normal() * size);
    values[i] = second ? std::fabs(values[i]) : values[i];
  }
  return values;
}

TEST(PackedMoments, PackingWhatWasUnpackedChangesNothing) {
  for (const bool second : {false, true}) {
    const std::vector<float> once = Rounded(Values(3, second), second);
    EXPECT_EQ(Rounded(once, second), once) << "second " << second;
  }
}

TEST(PackedMoments, ErrorsAreOfTheRootsLevels) {
  for (const bool second : {false, true}) {
    const std::vector<float> values = Values(7, second);
    const std::vector<float> rounded = Rounded(values, second);
    // The root that AdamW divides by has a second root here.
    const auto root = [second](float value) {
      return std::sqrt(second ? std::sqrt(value) : std::fabs(value));
    };
    for (size_t block = 0; block < values.size(); block += kBlock) {
      float largest = 0;
      for (size_t i = block; i < block + kBlock; ++i) {
        largest = std::max(largest, std::fabs(values[i]));
      }
      const float step = root(largest) / (second ? 255.0F : 127.0F);
      for (size_t i = block; i < block + kBlock; ++i) {
        const float most = second && root(values[i]) < step ? step : 0.501F * step;
        EXPECT_NEAR(root(values[i]), root(rounded[i]),
                    largest < kLeastScale ? root(largest) : most);
        EXPECT_TRUE(rounded[i] == 0 || std::signbit(rounded[i]) == std::signbit(values[i]));
      }
    }
  }
}

TEST(PackedMoments, DrawnLevelsHaveTheValueAsTheirMean) {
  constexpr uint32_t kDraws = 4096;
  std::vector<float> values(kBlock);
  for (size_t i = 0; i < kBlock; ++i) {
    values[i] = 0.7F * std::pow(0.53F, static_cast<float>(i));
  }
  std::vector<double> sums(kBlock);
  for (uint32_t draw = 0; draw < kDraws; ++draw) {
    const std::vector<float> drawn = Drawn(values, draw);
    EXPECT_EQ(drawn[0], values[0]);
    for (size_t i = 0; i < kBlock; ++i) {
      sums[i] += static_cast<double>(drawn[i]);
    }
  }
  for (size_t i = 1; i < kBlock; ++i) {
    const float level = std::floor(255 * std::pow(values[i] / values[0], 0.25F));
    const float gap = SecondMoment::Value(static_cast<uint8_t>(level + 1), values[0]) -
                      SecondMoment::Value(static_cast<uint8_t>(level), values[0]);
    EXPECT_NEAR(sums[i] / kDraws, values[i], gap / 32) << "level " << level;
    EXPECT_NE(Rounded(values, /*second=*/true)[i], values[i]);
  }
}

TEST(PackedMoments, DrawingLeavesTheLargest) {
  constexpr float kLeastLikely = 0x1.fffffeP-1F;
  for (int i = 1; i < 1000; ++i) {
    const auto largest = static_cast<float>(i);  // 41 * (1 / 41) is below 1
    EXPECT_EQ(DrawnSecondMoment::Level(largest, 1 / largest, kLeastLikely), 255) << i;
  }
}

TEST(PackedMoments, ASecondMomentIsNeverRoundedToZero) {
  std::vector<float> values(kBlock, 1e-20F);
  values[0] = 1;
  values[1] = 0;
  const std::vector<float> rounded = Rounded(values, /*second=*/true);
  EXPECT_EQ(rounded[0], 1.0F);
  EXPECT_EQ(rounded[1], 0.0F);
  EXPECT_GE(rounded[2], 1e-20F);
  EXPECT_LT(rounded[2], 1e-9F);
}

TEST(PackedMoments, AValueThatIsNotFiniteSpoilsNoOther) {
  std::vector<float> values(kBlock, 1.0F);
  values[3] = 0;
  values[5] = HUGE_VALF;
  const std::vector<float> rounded = Rounded(values, /*second=*/true);
  EXPECT_EQ(rounded[3], 0.0F);
  for (const float value : rounded) {
    EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(PackedMoments, NothingIsZero) {
  for (const bool second : {false, true}) {
    const std::vector<float> zero(kBlock);
    EXPECT_EQ(Rounded(zero, second), zero);
    EXPECT_EQ(Rounded(std::vector<float>(kBlock, 1e-30F), second), zero);
  }
}

}  // namespace
}  // namespace shoal::server
