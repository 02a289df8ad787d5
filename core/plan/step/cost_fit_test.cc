#include "core/plan/step/cost_fit.h"

#include <cmath>
#include <limits>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

// A device that reaches 42 thousand tokens before attention costs as much as the rest.
constexpr CostModel kTrue = {
    .per_microbatch = 0.02, .per_token = 2e-5, .per_squared_token = 2e-5 / 42170};

MeasuredMicrobatch RandomMicrobatch(Random& random, int worker, int64_t longest) {
  MeasuredMicrobatch measured{.worker = worker};
  for (int64_t left = random.Between(longest / 8, longest); left > 0;) {
    const int64_t tokens = random.Between(1, left);
    measured.tokens += tokens;
    measured.squared_tokens += static_cast<double>(tokens) * static_cast<double>(tokens);
    left -= tokens;
  }
  return measured;
}

double Seconds(const CostModel& cost, const MeasuredMicrobatch& microbatch) {
  return cost.Microbatch(microbatch.tokens, microbatch.squared_tokens);
}

TEST(CostFit, RecoversCoefficientsAndSpeedsUnderNoise) {
  Random random(1);
  for (int round = 0; round < 20; ++round) {
    const std::vector<double> speeds = {1.25, 0.5, 1.6, 1.0};  // geometric mean 1
    CostFit fit(4);
    for (int i = 0; i < 50; ++i) {
      for (int worker = 0; worker < 4; ++worker) {
        MeasuredMicrobatch measured = RandomMicrobatch(random, worker, 65536);
        measured.seconds = Seconds(kTrue, measured) / speeds[static_cast<size_t>(worker)] *
                           (1 + 0.05 * random.Normal());
        fit.Add(measured);
      }
    }
    const FittedCosts fitted = fit.Fit();
    EXPECT_TRUE(fitted.enough);
    for (size_t worker = 0; worker < 4; ++worker) {
      EXPECT_NEAR(fitted.speeds[worker] / speeds[worker], 1, 0.05);
    }
    EXPECT_NEAR(fitted.cost.per_token / kTrue.per_token, 1, 0.15);
    EXPECT_NEAR(fitted.cost.per_squared_token / kTrue.per_squared_token, 1, 0.25);
    EXPECT_NEAR(fitted.cost.per_microbatch, kTrue.per_microbatch, 0.04);
    // What matters is its predictions for microbatches that it has not seen.
    for (int i = 0; i < 50; ++i) {
      const MeasuredMicrobatch other = RandomMicrobatch(random, 0, 65536);
      EXPECT_NEAR(Seconds(fitted.cost, other) / Seconds(kTrue, other), 1, 0.06);
    }
  }
}

TEST(CostFit, IsExactWithoutNoise) {
  Random random(2);
  CostFit fit(2);
  for (int i = 0; i < 20; ++i) {
    for (const int worker : {0, 1}) {
      MeasuredMicrobatch measured = RandomMicrobatch(random, worker, 4096);
      measured.seconds = Seconds(kTrue, measured) * (worker == 0 ? 0.5 : 2.0);
      fit.Add(measured);
    }
  }
  const FittedCosts fitted = fit.Fit();
  EXPECT_NEAR(fitted.speeds[0], 2, 1e-5);
  EXPECT_NEAR(fitted.speeds[1], 0.5, 1e-5);
  EXPECT_NEAR(fitted.cost.per_microbatch / kTrue.per_microbatch, 1, 1e-3);
  EXPECT_NEAR(fitted.cost.per_token / kTrue.per_token, 1, 1e-3);
}

TEST(CostFit, SaysRightWhatItHasSeenEvenOfFewLengths) {
  for (const int lengths : {1, 2, 3}) {
    CostFit fit(3);
    EXPECT_FALSE(fit.Fit().enough);
    EXPECT_THAT(fit.Fit().speeds, testing::Each(1.0));
    for (int i = 0; i < 30; ++i) {
      for (const int worker : {0, 1}) {
        const int64_t tokens = 1000 * (1 + i % lengths);
        MeasuredMicrobatch measured{.worker = worker,
                                    .tokens = tokens,
                                    .squared_tokens = static_cast<double>(tokens * tokens)};
        measured.seconds = Seconds(kTrue, measured) * (worker == 0 ? 1.0 : 4.0);
        fit.Add(measured);
      }
    }
    const FittedCosts fitted = fit.Fit();
    EXPECT_FALSE(fitted.enough);
    EXPECT_NEAR(fitted.speeds[0], 2, 1e-4);
    EXPECT_NEAR(fitted.speeds[1], 0.5, 1e-4);
    EXPECT_EQ(fitted.speeds[2], 1.0);
    EXPECT_GE(fitted.cost.per_microbatch, 0);
    EXPECT_GE(fitted.cost.per_token, 0);
    EXPECT_GE(fitted.cost.per_squared_token, 0);
    for (int i = 0; i < lengths; ++i) {
      const int64_t tokens = 1000 * (1 + i);
      const auto squared = static_cast<double>(tokens * tokens);
      EXPECT_NEAR(fitted.cost.Microbatch(tokens, squared) / kTrue.Microbatch(tokens, squared), 2,
                  1e-3);
    }
  }
}

TEST(CostFit, FollowsAWorkerThatChangesAndForgivesAPause) {
  Random random(3);
  CostFit fit(4);
  const auto run = [&](double speed_of_3, int microbatches) {
    for (int i = 0; i < microbatches; ++i) {
      for (int worker = 0; worker < 4; ++worker) {
        MeasuredMicrobatch measured = RandomMicrobatch(random, worker, 16384);
        measured.seconds = Seconds(kTrue, measured) / (worker == 3 ? speed_of_3 : 1.0);
        fit.Add(measured);
      }
    }
  };
  run(1.0, 100);
  MeasuredMicrobatch paused = RandomMicrobatch(random, 1, 16384);
  paused.seconds = 1000 * Seconds(kTrue, paused);
  fit.Add(paused);
  EXPECT_NEAR(fit.Fit().speeds[1], 1, 0.2);
  run(0.5, 100);
  const FittedCosts fitted = fit.Fit();
  EXPECT_EQ(fitted.measured, 4 * 64);
  EXPECT_NEAR(fitted.speeds[3] / fitted.speeds[0], 0.5, 0.01);
}

TEST(CostFit, LeavesOutWhatCannotBe) {
  CostFit fit(1);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const MeasuredMicrobatch& bad :
       {MeasuredMicrobatch{0, 0, 0, 1}, MeasuredMicrobatch{0, 10, 9, 1},
        MeasuredMicrobatch{0, 10, 101, 1}, MeasuredMicrobatch{0, 10, 100, 0},
        MeasuredMicrobatch{0, 10, 100, infinity}, MeasuredMicrobatch{0, 10, 100, std::nan("")},
        MeasuredMicrobatch{1, 10, 100, 1}, MeasuredMicrobatch{-1, 10, 100, 1}}) {
    fit.Add(bad);
  }
  EXPECT_EQ(fit.Fit().measured, 0);
}

TEST(CostFit, WorkersKeepTheirSpeedsUnderOtherNumbers) {
  Random random(9);
  CostFit fit(3);
  for (int i = 0; i < 40; ++i) {
    for (int worker = 0; worker < 3; ++worker) {
      MeasuredMicrobatch measured = RandomMicrobatch(random, worker, 16384);
      measured.seconds = Seconds(kTrue, measured) / (worker + 1);
      fit.Add(measured);
    }
  }
  fit.Renumber({2, -1, 0});  // the second is gone, and another has come
  const FittedCosts fitted = fit.Fit();
  EXPECT_NEAR(fitted.speeds[0] / fitted.speeds[2], 3, 0.05);
  EXPECT_EQ(fitted.measured, 80);
}

}  // namespace
}  // namespace shoal::plan
