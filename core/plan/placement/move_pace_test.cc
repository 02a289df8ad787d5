#include "core/plan/placement/move_pace.h"

#include <vector>

#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

constexpr int64_t kMega = 1'000'000;

TEST(MovePace, GrowsFastWhereTwiceAsMuchFits) {
  MovePace pace{.bytes = kMega};
  pace = AfterWave(pace, kMega, 0.01);
  EXPECT_EQ(pace.bytes, 2 * kMega);
  pace = AfterWave(pace, 2 * kMega, 0);
  EXPECT_EQ(pace.bytes, 4 * kMega);
  pace = AfterWave(pace, 4 * kMega, 0.06);
  EXPECT_EQ(pace.bytes, 4 * kMega);
  // A last one, of less, says little of more.
  EXPECT_EQ(AfterWave(pace, kMega, 0.06).bytes, 4 * kMega);
  EXPECT_EQ(AfterWave(pace, 0, 0).bytes, 4 * kMega);
}

TEST(MovePace, AWaveThatTookTooLongHalvesItAndFourGoodOnesRaiseIt) {
  MovePace pace{.bytes = 100 * kMega};
  pace = AfterWave(pace, 100 * kMega, 0.11);
  EXPECT_EQ(pace.bytes, 50 * kMega);
  for (int wave = 0; wave < 3; ++wave) {
    pace = AfterWave(pace, 50 * kMega, 0.1);
    EXPECT_EQ(pace.bytes, 50 * kMega);
  }
  pace = AfterWave(pace, 50 * kMega, 0.1);
  EXPECT_EQ(pace.bytes, 62'500'000);
  pace = AfterWave(pace, 62'500'000, 0.06);
  EXPECT_EQ(pace.bytes, 62'500'000) << "counted since it changed";
  // Much too long: what would have fit.
  EXPECT_EQ(AfterWave(pace, 62'500'000, 1).bytes, 6'250'000);
  // One that was larger than the pace, since few waves were left, is judged by its own bytes.
  EXPECT_EQ(AfterWave(pace, 1000 * kMega, 1).bytes, 100 * kMega);
  EXPECT_EQ(AfterWave({.bytes = 1}, 1, 5).bytes, 1);
}

TEST(MovePace, WhatWasTooMuchIsNotTriedAgainForSixteenWaves) {
  // Waves of one part of the state or of two, of which two are too long.
  const auto seconds_of = [](int64_t bytes) { return bytes < 2 * kMega ? 0.04 : 0.11; };
  MovePace pace{.bytes = kMega};
  std::vector<int> too_long;
  for (int wave = 0; wave < 51; ++wave) {
    const int64_t bytes = pace.bytes < 2 * kMega ? kMega : 2 * kMega;
    if (seconds_of(bytes) > kWavePause) {
      too_long.push_back(wave);
    }
    pace = AfterWave(pace, bytes, seconds_of(bytes));
  }
  EXPECT_EQ(too_long, (std::vector<int>{1, 19, 37}));
  // What follows at once is less than that, and as near to it as four good ones bring it.
  pace = AfterWave({.bytes = 10 * kMega}, 20 * kMega, 0.11);
  EXPECT_EQ(pace.bytes, 10 * kMega);
  pace = AfterWave(pace, 10 * kMega, 0.04);
  EXPECT_EQ(pace.bytes, 20 * kMega - 1);
}

TEST(MovePace, NoWishHasMoreWavesThanThat) {
  const MovePace slow{.bytes = 10};
  int64_t left = 1'000'003;
  int64_t waves = 0;
  for (; left > 0; ++waves) {
    left -= NextWaveBytes(slow, left, waves);
  }
  EXPECT_EQ(waves, kMostWaves);
  EXPECT_EQ(NextWaveBytes(slow, 500, kMostWaves + 1), 500) << "what is left goes at once";
  EXPECT_EQ(NextWaveBytes({.bytes = 70}, 100, 0), 70);
}

TEST(MovePace, ARateKeepsWavesApart) {
  EXPECT_EQ(BeforeNextWave(50 * kMega, 200 * kMega), absl::Milliseconds(250));
}

}  // namespace
}  // namespace shoal::plan
