#include <cmath>
#include <set>

#include "bench/on_demand/emulated.h"
#include "bench/on_demand/experiments.h"
#include "bench/on_demand/paper.h"
#include "core/model/model_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Grid, HasEachConfigOnceAndTheGoldenOneFirst) {
  const std::vector<Config> grid = Grid();
  std::set<std::string> names;
  for (const Config& config : grid) {
    EXPECT_TRUE(names.insert(config.Name()).second) << config.Name();
    EXPECT_TRUE(plan::NamedShape(config.shape).has_value()) << config.shape;
    EXPECT_TRUE(DrawSteps(config, 1).ok());
  }
  EXPECT_EQ(grid.front().Name(), Config().Name());
  for (const Sweep& sweep : ParameterSweeps()) {
    EXPECT_EQ(sweep.places.size(), sweep.configs.size());
    for (const Config& config : sweep.configs) {
      EXPECT_TRUE(names.contains(config.Name()));
    }
  }
  // The grid has every config compared with the paper.
  for (const PaperFigure& figure : SpeedUpsOfPaper()) {
    EXPECT_TRUE(names.contains(figure.config.Name())) << figure.config.Name();
  }
  for (const PaperBubble& bubble : BubblesOfPaper()) {
    EXPECT_TRUE(names.contains(bubble.config.Name())) << bubble.config.Name();
  }
}

TEST(DrawSteps, MoreStepsBeginAlike) {
  const Config config;
  const Steps few = *DrawSteps(config, 2);
  const Steps many = *DrawSteps(config, 5);
  for (size_t step = 0; step < few.size(); ++step) {
    ASSERT_EQ(few[step].size(), 32u);
    for (size_t i = 0; i < few[step].size(); ++i) {
      EXPECT_EQ(few[step][i].tokens, many[step][i].tokens);
      EXPECT_EQ(few[step][i].sample, static_cast<int64_t>(32 * step + i));
      EXPECT_LE(few[step][i].tokens, config.longest);
    }
  }
}

TEST(ParseSteps, TakesStepsAndNothingElse) {
  const std::string output =
      "coordinator: listening\n"
      "{\"event\":\"step\",\"step\":1,\"step_seconds\":0.5,\"idle_share\":0.25}\n"
      "{\"event\":\"step\",\"step\":2,\"step_seconds\":0.75,\"predicted_idle_share\":0.125}\n"
      "{\"event\":\"done\",\"step\":2}\n";
  const auto steps = ParseSteps(output, 2);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ((*steps)[0].seconds, 0.5);
  EXPECT_EQ((*steps)[0].idle_share, 0.25);
  EXPECT_EQ((*steps)[1].predicted_idle_share, 0.125);
  EXPECT_FALSE(ParseSteps(output, 3).ok());
  EXPECT_FALSE(ParseSteps("{\"event\":\"step\",\"step\":2}\n", 1).ok());
}

TEST(EmulatedMethod, DifferenceIsOfTheMedianStep) {
  const EmulatedMethod method{.measured = {1.02, 4, 3.06}, .simulated = {1, 2, 3}};
  EXPECT_NEAR(method.difference(), 0.02, 1e-12);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2.5);
}

// Judges bars of made-up measurements; the report misses nothing.
TEST(Report, SaysWhatWasMetAndMissed) {
  plan::ClusterSpec cluster;
  cluster.devices = {{.count = 8}};
  Results results;
  results.simulated.push_back(*Simulate(Config(), cluster, 3));
  EmulatedConfig golden{.config = Config(), .ideal_seconds = 1};
  for (const Method& method : kMethods) {
    const double seconds = method.is_baseline() ? 1.5 : 1.1;
    golden.methods.push_back({.method = method,
                              .measured = {seconds, seconds},
                              .simulated = {seconds, seconds / 1.2},
                              .idle_share = 0.3,
                              .predicted_idle_share = 0.295});
  }
  results.emulated.push_back(golden);
  Report report("charts");
  AddGolden(results, report);
  AddSweeps(results, report);
  AddShapes(results, report);
  AddPaper(results, report);
  AddAgreement(results, report);
  const std::string text = report.Markdown("Title", "Introduction.");
  EXPECT_EQ(report.missed(), 1) << text;
  EXPECT_THAT(text, HasSubstr("| at least 1.26 | 1.364 | met |"));
  EXPECT_THAT(text, HasSubstr("| within 5% | at most +10.0%"));
  EXPECT_THAT(text, HasSubstr("![speed-up and idle share by devices](charts/devices.svg)"));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace shoal::bench
