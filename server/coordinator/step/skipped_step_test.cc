#include "server/coordinator/step/skipped_step.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

TEST(WhySkipped, WhatIsNotFiniteOnlyWhereAskedFor) {
  const StepTotals totals = {.loss = 1, .grad_norm = 1, .non_finite = 3};
  EXPECT_EQ(WhySkipped({}, {}, totals), "");
  EXPECT_EQ(WhySkipped({.nonfinite = true}, {}, totals), "3 gradient elements are not finite");
  EXPECT_EQ(WhySkipped({.nonfinite = true}, {}, {.loss = std::nan("")}), "the loss is nan");
  EXPECT_EQ(WhySkipped({.nonfinite = true}, {}, {.loss = 1, .grad_norm = 1e30}), "");
}

TEST(WhyFatal, WhatIsNotFiniteAndNotSkippedOrSkippedForTheThirdTime) {
  const StepTotals bad = {.loss = 1, .non_finite = 3};
  const plan::SkipStepOptions options = {.nonfinite = true};
  EXPECT_EQ(WhyFatal({}, {}, bad), "3 gradient elements are not finite");
  EXPECT_EQ(WhyFatal({}, {}, {.loss = 1}), "");
  proto::GradientNorms norms;
  norms.set_skipped_in_a_row(1);
  EXPECT_EQ(WhyFatal(options, norms, bad), "");
  norms.set_skipped_in_a_row(2);
  EXPECT_EQ(WhyFatal(options, norms, bad),
            "3 gradient elements are not finite, as in the two before it, which were skipped");
  EXPECT_EQ(WhyFatal(options, norms, {.loss = 1}), "");
}

TEST(WhySkipped, ANormFarAboveTheMeanOnceThereIsOne) {
  const plan::SkipStepOptions options = {.norm_factor = 4, .window = 100};
  proto::GradientNorms norms;
  for (int step = 0; step < 9; ++step) {
    norms = AddStep(options, norms, 2, false);
  }
  EXPECT_EQ(WhySkipped(options, norms, {.loss = 1, .grad_norm = 100}), "") << "too few";
  norms = AddStep(options, norms, 2, false);
  EXPECT_EQ(WhySkipped(options, norms, {.loss = 1, .grad_norm = 8}), "");
  EXPECT_EQ(WhySkipped(options, norms, {.loss = 1, .grad_norm = 8.1}),
            "the gradient norm is 8.1, and 2 in the mean");
  EXPECT_EQ(WhySkipped({}, norms, {.loss = 1, .grad_norm = 1e9}), "") << "not asked for";
}

TEST(AddStep, TheMeanRunsOverTheWindowAndLeavesOutWhatIsSkipped) {
  const plan::SkipStepOptions options = {.norm_factor = 4, .window = 2};
  proto::GradientNorms norms;
  for (const double norm : {1.0, 3.0, 6.0}) {
    norms = AddStep(options, norms, norm, false);
  }
  EXPECT_EQ(norms.mean(), 4);  // 1, then 2, then half way to 6
  EXPECT_EQ(norms.steps(), 3);
  for (int64_t row = 1; row <= 2; ++row) {
    norms = AddStep(options, norms, std::numeric_limits<double>::infinity(), true);
    EXPECT_EQ(norms.skipped_in_a_row(), row);
    EXPECT_EQ(norms.mean(), 4);
  }
  EXPECT_EQ(AddStep(options, norms, 4, false).skipped_in_a_row(), 0);
}

}  // namespace
}  // namespace shoal::server
