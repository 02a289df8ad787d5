#include "worker/loss/preference.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "core/base/random.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::worker {
namespace {

using plan::PreferenceLoss;
using plan::PreferenceOptions;

constexpr const char* kNames[] = {"sigmoid", "hinge", "ipo", "robust", "simpo", "orpo"};

PreferenceOptions OptionsOf(const nlohmann::json& golden) {
  const auto* const name = std::ranges::find(kNames, golden["loss"].get<std::string>());
  return {.loss = static_cast<PreferenceLoss>(name - std::begin(kNames)),
          .beta = golden["beta"],
          .label_smoothing = golden["label_smoothing"],
          .gamma = golden["gamma"],
          .lambda = golden["lambda"],
          .sft_weight = golden["sft_weight"]};
}

// Of those that the loss has.
PairSums SumsOf(const PreferenceOptions& options, const nlohmann::json& sums) {
  PairSums pair = {.chosen = sums[0],
                   .rejected = sums[1],
                   .chosen_targets = sums[4],
                   .rejected_targets = sums[5]};
  if (options.has_reference()) {
    pair.reference_chosen = sums[2];
    pair.reference_rejected = sums[3];
  }
  return pair;
}

TEST(LossOfPair, IsThatOfTrl) {
  const auto golden =
      nlohmann::json::parse(std::ifstream(std::string(SHOAL_REFERENCES) + "/dpo.json"));
  ASSERT_GE(golden["losses"].size(), 78u);
  for (const nlohmann::json& expected : golden["losses"]) {
    const PreferenceOptions options = OptionsOf(expected);
    const PairLoss loss = LossOfPair(options, SumsOf(options, expected["sums"]));
    const auto near = [&](double value, const char* key) {
      const double of_golden = expected[key];
      EXPECT_NEAR(value, of_golden, 1e-12 * std::max(1.0, std::abs(of_golden)))
          << key << " of " << expected.dump();
    };
    near(loss.loss, "loss_value");
    near(loss.d_chosen, "d_chosen");
    near(loss.d_rejected, "d_rejected");
  }
}

TEST(LossOfPair, HasTheDerivativesOfItsDifferences) {
  Random random(7);
  for (size_t kind = 0; kind < std::size(kNames); ++kind) {
    for (int i = 0; i < 50; ++i) {
      const PreferenceOptions options = {.loss = static_cast<PreferenceLoss>(kind),
                                         .beta = 0.05 + random.Uniform(),
                                         .label_smoothing = 0.4 * random.Uniform(),
                                         .gamma = random.Uniform(),
                                         .lambda = random.Uniform(),
                                         .sft_weight = random.Uniform()};
      PairSums sums = {.chosen = -1 - 9 * random.Uniform(),
                       .rejected = -1 - 9 * random.Uniform(),
                       .reference_chosen = -10 * random.Uniform(),
                       .reference_rejected = -10 * random.Uniform(),
                       .chosen_targets = 1 + static_cast<int64_t>(random.Below(9)),
                       .rejected_targets = 1 + static_cast<int64_t>(random.Below(9))};
      const PairLoss loss = LossOfPair(options, sums);
      const auto slope = [&](double PairSums::*of) {
        constexpr double kStep = 1e-6;
        PairSums less = sums;
        PairSums more = sums;
        less.*of -= kStep;
        more.*of += kStep;
        return (LossOfPair(options, more).loss - LossOfPair(options, less).loss) / (2 * kStep);
      };
      EXPECT_NEAR(loss.d_chosen, slope(&PairSums::chosen), 1e-6) << kNames[kind];
      EXPECT_NEAR(loss.d_rejected, slope(&PairSums::rejected), 1e-6) << kNames[kind];
    }
  }
}

TEST(LossOfPair, IsLnTwoWhereNothingIsLearntYet) {
  const PairSums sums = {-12, -34, -12, -34, 5, 6};
  EXPECT_DOUBLE_EQ(LossOfPair({}, sums).loss, std::log(2.0));
  EXPECT_DOUBLE_EQ(LossOfPair({.loss = PreferenceLoss::kHinge}, sums).loss, 1);
}

TEST(LossOfPair, StaysFinite) {
  for (size_t kind = 0; kind < std::size(kNames); ++kind) {
    const PreferenceOptions options = {.loss = static_cast<PreferenceLoss>(kind), .beta = 10};
    for (const PairSums& sums : {PairSums{0, -1e6, -1e6, 0, 1, 1}, PairSums{-1e6, 0, 0, -1e6, 1, 1},
                                 PairSums{0, 0, 0, 0, 1, 1}}) {
      const PairLoss loss = LossOfPair(options, sums);
      EXPECT_TRUE(std::isfinite(loss.loss) && std::isfinite(loss.d_chosen) &&
                  std::isfinite(loss.d_rejected))
          << kNames[kind];
    }
  }
}

TEST(LossOfPair, HidesNoNan) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (size_t kind = 0; kind < std::size(kNames); ++kind) {
    const PreferenceOptions options = {.loss = static_cast<PreferenceLoss>(kind)};
    EXPECT_FALSE(std::isfinite(LossOfPair(options, {kNan, -2, -1, -2, 3, 4}).loss)) << kNames[kind];
    EXPECT_FALSE(std::isfinite(LossOfPair(options, {-1, kNan, -1, -2, 3, 4}).loss)) << kNames[kind];
  }
}

}  // namespace
}  // namespace shoal::worker
