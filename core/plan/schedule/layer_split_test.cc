#include "core/plan/schedule/layer_split.h"

#include <algorithm>
#include <limits>

#include "core/base/random.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> CountsOf(const std::vector<double>& costs, int stages, int chunks,
                          Placement placement = Placement::kLooped) {
  const auto split = SplitLayers(costs, stages, chunks, placement);
  EXPECT_TRUE(split.ok()) << Describe(split.status());
  std::vector<int> counts;
  int next = 0;
  for (const UnitRange& range : *split) {
    EXPECT_EQ(range.first, next);
    EXPECT_GE(range.count, 1);
    next = range.end();
    counts.push_back(range.count);
  }
  EXPECT_EQ(next, static_cast<int>(costs.size()));
  return counts;
}

// The embedding, blocks that cost 1, the head.
std::vector<double> Model(int blocks, double embedding, double head) {
  std::vector<double> costs(static_cast<size_t>(blocks) + 2, 1.0);
  costs.front() = embedding;
  costs.back() = head;
  return costs;
}

TEST(SplitLayers, GivesTheStageWithTheHeadFewerBlocks) {
  EXPECT_THAT(CountsOf(Model(10, 0, 2), 2, 1), ElementsAre(7, 5));
  EXPECT_THAT(CountsOf(Model(10, 0, 2), 3, 1), ElementsAre(5, 4, 3));
  // The head gets its own stage if it costs as much as others' blocks.
  EXPECT_THAT(CountsOf(Model(9, 0, 3), 4, 1), ElementsAre(4, 3, 3, 1));
}

TEST(SplitLayers, CountsWhatAStageHasInAllItsChunks) {
  // Stage 1 of two has the head in its last chunk: looped it is virtual stage 3, in a V stage 0's.
  const std::vector<int> looped = CountsOf(Model(12, 0, 2), 2, 2);
  EXPECT_EQ(looped[0] - 1 + looped[2], 7);
  EXPECT_EQ(looped[1] + looped[3] - 1, 5);
  const std::vector<int> folded = CountsOf(Model(12, 0, 2), 2, 2, Placement::kVShaped);
  EXPECT_EQ(folded[0] - 1 + folded[3] - 1, 5);
  EXPECT_EQ(folded[1] + folded[2], 7);
}

TEST(SplitLayers, OneStageHasEverything) {
  EXPECT_THAT(CountsOf(Model(12, 0, 2), 1, 1), ElementsAre(14));
  EXPECT_THAT(CountsOf({1.0}, 1, 1), ElementsAre(1));
  const std::vector<int> runs = CountsOf(Model(32, 0, 4), 1, 8);
  EXPECT_LE(*std::ranges::max_element(runs), 6);
}

TEST(SplitLayers, TooFewUnitsAreRefused) {
  const auto split = SplitLayers(Model(2, 1, 1), 5, 1, Placement::kLooped);
  EXPECT_TRUE(absl::IsInvalidArgument(split.status()));
  EXPECT_THAT(Describe(split.status()), HasSubstr("use fewer stages or chunks"));
  EXPECT_THAT(CountsOf(Model(2, 1, 1), 2, 2), ElementsAre(1, 1, 1, 1));
}

// Returns the least cost of any split, by trying all of them.
double Least(const std::vector<double>& costs, int stages, int chunks, Placement placement) {
  double least = std::numeric_limits<double>::max();
  std::vector<UnitRange> split;
  const auto walk = [&](const auto& self, int first) -> void {
    const int left = static_cast<int>(costs.size()) - first;
    const int places = stages * chunks - static_cast<int>(split.size());
    if (places == 0) {
      if (left == 0) {
        least = std::min(least, SplitCost(costs, split, stages, chunks, placement));
      }
      return;
    }
    for (int count = 1; count <= left - places + 1; ++count) {
      split.push_back({.first = first, .count = count});
      self(self, first + count);
      split.pop_back();
    }
  };
  walk(walk, 0);
  return least;
}

TEST(SplitLayers, NoContiguousSplitOfAFewUnitsIsBetter) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const auto stages = static_cast<int>(random.Between(1, 4));
    const auto chunks = static_cast<int>(random.Between(1, 3));
    const auto units = static_cast<size_t>(stages * chunks) + random.Below(5);
    const Placement placement = random.Below(2) == 0 ? Placement::kLooped : Placement::kVShaped;
    std::vector<double> costs(units);
    for (double& cost : costs) {
      cost = random.Below(4) == 0 ? 0 : random.Uniform();
    }
    const auto split = SplitLayers(costs, stages, chunks, placement);
    ASSERT_TRUE(split.ok());
    EXPECT_LE(SplitCost(costs, *split, stages, chunks, placement),
              Least(costs, stages, chunks, placement) + 1e-9);
  }
}

TEST(SplitLayers, NoContiguousSplitOfManyAlikeBlocksIsBetter) {
  // More splits than SplitLayers tries, few enough for this test.
  for (const double head : {0.5, 2.5, 7.0}) {
    for (const auto& [stages, chunks] : {std::pair(2, 4), std::pair(3, 2), std::pair(7, 1)}) {
      for (const Placement placement : {Placement::kLooped, Placement::kVShaped}) {
        const std::vector<double> costs = Model(21, 0.1, head);
        const auto split = SplitLayers(costs, stages, chunks, placement);
        ASSERT_TRUE(split.ok());
        EXPECT_LE(SplitCost(costs, *split, stages, chunks, placement),
                  Least(costs, stages, chunks, placement) + 1e-9)
            << head << " " << stages << " " << chunks;
      }
    }
  }
}

TEST(SplitLayers, LargeModelsAreNearTheirMean) {
  Random random(9);
  std::vector<double> costs(130);
  for (double& cost : costs) {
    cost = 0.9 + 0.2 * random.Uniform();
  }
  const auto split = SplitLayers(costs, 32, 4, Placement::kLooped);
  ASSERT_TRUE(split.ok());
  // 128 chunks of one unit and two of two: a stage of five units at most, and chunks of two.
  EXPECT_LE(SplitCost(costs, *split, 32, 4, Placement::kLooped), 5.3 + 2.2 / 4);
}

}  // namespace
}  // namespace shoal::plan
