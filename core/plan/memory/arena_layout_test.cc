#include "core/plan/memory/arena_layout.h"

#include <algorithm>
#include <numeric>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

int64_t MostAtOnce(const std::vector<Lifetime>& lifetimes) {
  int64_t most = 0;
  for (const Lifetime& at : lifetimes) {
    int64_t used = 0;
    for (const Lifetime& lifetime : lifetimes) {
      used += lifetime.from <= at.from && at.from < lifetime.until ? lifetime.size : 0;
    }
    most = std::max(most, used);
  }
  return most;
}

void ExpectApart(const std::vector<Lifetime>& lifetimes, const ArenaLayout& layout) {
  ASSERT_EQ(layout.offsets.size(), lifetimes.size());
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    EXPECT_GE(layout.offsets[i], 0);
    EXPECT_LE(layout.offsets[i] + lifetimes[i].size, layout.capacity);
    for (size_t j = 0; j < i; ++j) {
      if (lifetimes[i].from < lifetimes[j].until && lifetimes[j].from < lifetimes[i].until) {
        EXPECT_TRUE(layout.offsets[i] + lifetimes[i].size <= layout.offsets[j] ||
                    layout.offsets[j] + lifetimes[j].size <= layout.offsets[i]);
      }
    }
  }
}

TEST(LayOutArena, BuffersThatLiveAtOnceAreApartAndNearlyNothingIsLost) {
  Random random(61);
  double capacities = 0;
  double needed = 0;
  double as_they_come = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lifetimes;
    const auto count = static_cast<size_t>(random.Between(0, 60));
    for (size_t i = 0; i < count; ++i) {
      lifetimes.push_back({.size = random.Between(1, 1000),
                           .from = i,
                           .until = i + 1 + random.Below(1 + random.Below(40))});
    }
    const ArenaLayout layout = LayOutArena(lifetimes, 1);
    ExpectApart(lifetimes, layout);
    const int64_t most = MostAtOnce(lifetimes);
    EXPECT_GE(layout.capacity, most);
    EXPECT_LE(layout.capacity, most + most / 2);
    capacities += static_cast<double>(layout.capacity);
    needed += static_cast<double>(most);
    // If any arena is enough, they lie as they come.
    const ArenaLayout simple = LayOutArena(lifetimes, 1, 1'000'000);
    ExpectApart(lifetimes, simple);
    as_they_come += static_cast<double>(simple.capacity);
  }
  EXPECT_LE(capacities, 1.05 * needed);
  EXPECT_GT(as_they_come, 1.02 * capacities);
}

TEST(LayOutArena, AlignsAndUsesAgainWhatIsFree) {
  const std::vector<Lifetime> lifetimes = {{.size = 100, .from = 0, .until = 2},
                                           {.size = 10, .from = 1, .until = 4},
                                           {.size = 128, .from = 2, .until = 5}};
  const ArenaLayout layout = LayOutArena(lifetimes, 64);
  EXPECT_THAT(layout.offsets, testing::ElementsAre(0, 128, 0));
  EXPECT_EQ(layout.capacity, 192);
}

TEST(LayOutArena, LargeBuffersChooseFirstWhereOrderOfComingLosesMemory) {
  // Placed as they come, the small one is in the way of the last.
  const std::vector<Lifetime> lifetimes = {{.size = 10, .from = 0, .until = 1},
                                           {.size = 2, .from = 1, .until = 4},
                                           {.size = 6, .from = 2, .until = 3},
                                           {.size = 10, .from = 3, .until = 5}};
  const ArenaLayout layout = LayOutArena(lifetimes, 1);
  ExpectApart(lifetimes, layout);
  EXPECT_EQ(layout.capacity, MostAtOnce(lifetimes));
}

}  // namespace
}  // namespace shoal::plan
