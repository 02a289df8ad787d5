#include "core/plan/step/balanced_split.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

double Largest(std::span<const double> costs, const ItemSets& sets) {
  return std::ranges::max(SumsOf(costs, sets));
}

bool IsPartitionOf(size_t items, const ItemSets& sets) {
  std::vector<int> seen(items, 0);
  for (const auto& set : sets) {
    for (const size_t item : set) {
      ++seen[item];
    }
  }
  return std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; });
}

TEST(BalancedSplit, RefinementBeatsDifferencingWhereTheTextbookSaysSo) {
  const std::vector<double> costs = {8, 7, 6, 5, 4};
  EXPECT_THAT(SumsOf(costs, KarmarkarKarp(costs, 2)), testing::UnorderedElementsAre(16, 14));
  EXPECT_THAT(SumsOf(costs, BalancedSplit(costs, 2)), testing::ElementsAre(15, 15));
}

TEST(BalancedSplit, KeepsItsLaws) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const auto items = static_cast<size_t>(random.Between(0, 60));
    const auto sets = static_cast<int>(random.Between(1, 9));
    std::vector<double> costs(items);
    for (double& cost : costs) {
      cost = random.Below(4) == 0 ? 1.0 : std::exp(3 * random.Normal());
    }
    const ItemSets plain = KarmarkarKarp(costs, sets);
    const ItemSets split = BalancedSplit(costs, sets);
    ASSERT_EQ(static_cast<int>(split.size()), sets);
    EXPECT_TRUE(IsPartitionOf(items, plain));
    EXPECT_TRUE(IsPartitionOf(items, split));
    EXPECT_EQ(split, BalancedSplit(costs, sets));
    if (items > 0) {
      const double mean = std::accumulate(costs.begin(), costs.end(), 0.0) / sets;
      const double bound = std::max(mean, std::ranges::max(costs));
      EXPECT_GE(Largest(costs, split), bound * (1 - 1e-12));
      EXPECT_LE(Largest(costs, split), Largest(costs, plain) * (1 + 1e-12));
      EXPECT_LE(Largest(costs, split), mean + std::ranges::max(costs) + 1e-9);
    }
  }
}

// Returns the worst ratio to the optimum among random splits of ten items into two sets, of equal
// size if `equal`.
double WorstOfSmallCases(uint64_t seed, bool equal,
                         ItemSets (*split)(std::span<const double>, int)) {
  Random random(seed);
  double worst = 1;
  for (int round = 0; round < 200; ++round) {
    std::vector<double> costs(10);
    for (double& cost : costs) {
      cost = static_cast<double>(random.Between(1, 100));
    }
    const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
    double best = total;
    for (unsigned mask = 0; mask < 1024; ++mask) {
      if (!equal || std::popcount(mask) == 5) {
        double first = 0;
        for (unsigned i = 0; i < 10; ++i) {
          first += (mask >> i) & 1 ? costs[i] : 0.0;
        }
        best = std::min(best, std::max(first, total - first));
      }
    }
    worst = std::max(worst, Largest(costs, split(costs, 2)) / best);
  }
  return worst;
}

TEST(BalancedSplit, IsNearTheOptimumOfSmallCases) {
  EXPECT_LT(WorstOfSmallCases(/*seed=*/4, /*equal=*/false, BalancedSplit), 1.05);
}

std::vector<double> RandomCosts(Random& random, size_t items) {
  std::vector<double> costs(items);
  for (double& cost : costs) {
    cost = random.Below(4) == 0 ? 1.0 : std::exp(random.Normal());
  }
  return costs;
}

TEST(BalancedSplitEqual, SizesDifferByOneAtMost) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    const auto items = static_cast<size_t>(random.Between(0, 60));
    const auto sets = static_cast<int>(random.Between(1, 9));
    const std::vector<double> costs = RandomCosts(random, items);
    const ItemSets plain = KarmarkarKarpEqual(costs, sets);
    const ItemSets split = BalancedSplitEqual(costs, sets);
    ASSERT_EQ(static_cast<int>(split.size()), sets);
    for (const ItemSets* each : {&plain, &split}) {
      EXPECT_TRUE(IsPartitionOf(items, *each));
      const auto [smallest, largest] = std::ranges::minmax_element(
          *each, [](const auto& a, const auto& b) { return a.size() < b.size(); });
      EXPECT_LE(largest->size(), smallest->size() + 1);
    }
    if (items > 0) {
      EXPECT_LE(Largest(costs, split), Largest(costs, plain) * (1 + 1e-12));
    }
  }
}

TEST(BalancedSplitEqual, IsNearTheOptimumOfSmallCases) {
  EXPECT_LT(WorstOfSmallCases(/*seed=*/6, /*equal=*/true, BalancedSplitEqual), 1.08);
}

double Longest(std::span<const double> costs, std::span<const double> speeds,
               const ItemSets& sets) {
  const std::vector<double> sums = SumsOf(costs, sets);
  double longest = 0;
  for (size_t set = 0; set < sums.size(); ++set) {
    longest = std::max(longest, sums[set] / speeds[set]);
  }
  return longest;
}

TEST(BalancedSplitBySpeed, KeepsItsLaws) {
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    const auto items = static_cast<size_t>(random.Between(1, 60));
    std::vector<double> speeds(static_cast<size_t>(random.Between(1, 9)));
    for (double& speed : speeds) {
      speed = 0.3 + random.Uniform();
    }
    const std::vector<double> costs = RandomCosts(random, items);
    const ItemSets split = BalancedSplitBySpeed(costs, speeds);
    ASSERT_EQ(split.size(), speeds.size());
    EXPECT_TRUE(IsPartitionOf(items, split));
    EXPECT_EQ(split, BalancedSplitBySpeed(costs, speeds));
    const double fair = std::accumulate(costs.begin(), costs.end(), 0.0) /
                        std::accumulate(speeds.begin(), speeds.end(), 0.0);
    const double longest = Longest(costs, speeds, split);
    EXPECT_GE(longest, fair * (1 - 1e-12));
    EXPECT_LE(longest, Longest(costs, speeds, LongestFirst(costs, speeds)) * (1 + 1e-12));
    // A greedy set exceeds the fair share by at most one item.
    EXPECT_LE(longest, fair + std::ranges::max(costs) / std::ranges::min(speeds));
  }
}

// Measured speeds of equal workers differ slightly, which must not cost more than the difference.
TEST(BalancedSplitBySpeed, SpeedsThatAreNearlyAlikeSplitAsWell) {
  Random random(8);
  for (int round = 0; round < 100; ++round) {
    const auto sets = static_cast<size_t>(random.Between(2, 32));
    std::vector<double> speeds(sets);
    for (double& speed : speeds) {
      speed = 0.99 + 0.01 * random.Uniform();
    }
    const std::vector<double> costs = RandomCosts(random, 2 * sets);
    const std::vector<double> alike(sets, 1.0);
    const double longest = Longest(costs, alike, BalancedSplit(costs, static_cast<int>(sets)));
    EXPECT_LE(Longest(costs, speeds, BalancedSplitBySpeed(costs, speeds)),
              longest / std::ranges::min(speeds) * (1 + 1e-12));
  }
}

TEST(BalancedSplitBySpeed, ASetOfHalfTheSpeedGetsHalfAsMuch) {
  const std::vector<double> costs(35, 1.0);
  const std::vector<double> speeds = {1, 0.5, 1, 1};
  EXPECT_THAT(SumsOf(costs, BalancedSplitBySpeed(costs, speeds)),
              testing::ElementsAre(10, 5, 10, 10));
  const std::vector<double> alike = {2, 2, 2};
  EXPECT_EQ(BalancedSplitBySpeed(costs, alike), BalancedSplit(costs, 3));
}

}  // namespace
}  // namespace shoal::plan
