// The learning rate of a step.
#include <array>
#include <cmath>
#include <cstdint>
#include <map>

#include "core/job/job.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

TEST(LearningRateAt, RisesAndFallsAsSaid) {
  TrainOptions train;
  train.learning_rate = 1.0;
  train.minimum_learning_rate = 0.1;
  train.steps = 109;
  train.warmup_steps = 10;
  for (const auto schedule : {LearningRateSchedule::kLinear, LearningRateSchedule::kCosine,
                              LearningRateSchedule::kConstant}) {
    train.schedule = schedule;
    EXPECT_DOUBLE_EQ(LearningRateAt(train, 1), 0.1);
    EXPECT_DOUBLE_EQ(LearningRateAt(train, 5), 0.5);
    EXPECT_DOUBLE_EQ(LearningRateAt(train, 10), 1.0);
    for (int64_t step = 11; step <= 109; ++step) {
      EXPECT_LE(LearningRateAt(train, step), LearningRateAt(train, step - 1));
    }
    const bool constant = schedule == LearningRateSchedule::kConstant;
    EXPECT_DOUBLE_EQ(LearningRateAt(train, 60), constant ? 1.0 : 0.55);
    EXPECT_GT(LearningRateAt(train, 109), 0.1) << "the last step learns";
    EXPECT_DOUBLE_EQ(LearningRateAt(train, 110), constant ? 1.0 : 0.1);
  }
  train.warmup_steps = 109;
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 109), 1.0);
}

TEST(LearningRateAt, StaysAndFallsAtTheEndWithWsd) {
  TrainOptions train = {.steps = 100,
                        .learning_rate = 1.0,
                        .schedule = LearningRateSchedule::kWsd,
                        .warmup_steps = 10,
                        .minimum_learning_rate = 0.1,
                        .decay_steps = 20};
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 5), 0.5);
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 11), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 80), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 81), 0.1 + 0.9 * (1 - std::sqrt(1.0 / 21)));
  EXPECT_GT(LearningRateAt(train, 100), 0.1) << "the last step learns";
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 101), 0.1);
  train.decay_shape = DecayShape::kLinear;
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 87), 0.1 + 0.9 * 14 / 21);
  train.decay_shape = DecayShape::kCosine;
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 87), 0.1 + 0.9 * 0.75);
  train.decay_steps = 0;  // a tenth
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 90), 1.0);
  EXPECT_LT(LearningRateAt(train, 91), 1.0);
  train.warmup_steps = 95;  // leaves less than a tenth
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 95), 1.0);
  EXPECT_LT(LearningRateAt(train, 96), 1.0);
}

TEST(LearningRateAt, FallsByRootOrPower) {
  TrainOptions train = {.steps = 99,
                        .learning_rate = 1.0,
                        .schedule = LearningRateSchedule::kInverseSqrt,
                        .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 4), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 16), 0.5);
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 64), 0.25);
  train.minimum_learning_rate = 0.3;
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 64), 0.3);
  train.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 1), 1.0);
  train.schedule = LearningRateSchedule::kPolynomial;
  train.decay_power = 2;
  train.minimum_learning_rate = 0;
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 50), 0.25);
  EXPECT_DOUBLE_EQ(LearningRateAt(train, 100), 0);
}

// Computed apart, by another program.
TEST(LearningRateAt, IsWhatATableSays) {
  constexpr std::array<int64_t, 7> kSteps = {1, 8, 9, 24, 30, 31, 40};
  const std::map<LearningRateSchedule, std::array<double, 7>> table = {
      {LearningRateSchedule::kLinear,
       {0.125, 1, 0.972727273, 0.563636364, 0.4, 0.372727273, 0.127272727}},
      {LearningRateSchedule::kCosine,
       {0.125, 1, 0.997962365, 0.571411862, 0.325, 0.288974391, 0.102037635}},
      {LearningRateSchedule::kWsd, {0.125, 1, 1, 1, 1, 0.72863979, 0.14188367}},
      {LearningRateSchedule::kInverseSqrt,
       {0.125, 1, 0.942809042, 0.577350269, 0.516397779, 0.508000508, 0.447213595}},
      {LearningRateSchedule::kPolynomial,
       {0.125, 1, 0.920636113, 0.223040321, 0.133333333, 0.125043827, 0.100025044}}};
  for (const auto& [schedule, rates] : table) {
    const TrainOptions train = {.steps = 40,
                                .learning_rate = 1,
                                .schedule = schedule,
                                .warmup_steps = 8,
                                .minimum_learning_rate = 0.1,
                                .decay_steps = 10,
                                .decay_power = 3};
    for (size_t i = 0; i < kSteps.size(); ++i) {
      EXPECT_NEAR(LearningRateAt(train, kSteps[i]), rates[i], 1e-9)
          << static_cast<int>(schedule) << " at step " << kSteps[i];
    }
    EXPECT_GT(rates.back(), 0.1) << "the last step learns";
  }
}

}  // namespace
}  // namespace shoal::plan
