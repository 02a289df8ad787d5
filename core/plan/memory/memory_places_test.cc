#include "core/plan/memory/memory_places.h"

#include <algorithm>
#include <numeric>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

int64_t MostAtOnce(const std::vector<MemoryStay>& stays) {
  int64_t most = 0;
  for (const MemoryStay& at : stays) {
    int64_t used = 0;
    for (const MemoryStay& stay : stays) {
      used += stay.from <= at.from && at.from < stay.until ? stay.size : 0;
    }
    most = std::max(most, used);
  }
  return most;
}

void ExpectApart(const std::vector<MemoryStay>& stays, const MemoryPlaces& places) {
  ASSERT_EQ(places.begins.size(), stays.size());
  for (size_t i = 0; i < stays.size(); ++i) {
    EXPECT_GE(places.begins[i], 0);
    EXPECT_LE(places.begins[i] + stays[i].size, places.capacity);
    for (size_t j = 0; j < i; ++j) {
      if (stays[i].from < stays[j].until && stays[j].from < stays[i].until) {
        EXPECT_TRUE(places.begins[i] + stays[i].size <= places.begins[j] ||
                    places.begins[j] + stays[j].size <= places.begins[i]);
      }
    }
  }
}

TEST(PlaceStays, PiecesThatAreThereAtOnceAreApartAndNearlyNothingIsLost) {
  Random random(61);
  double capacities = 0;
  double needed = 0;
  double as_they_come = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<MemoryStay> stays;
    const auto count = static_cast<size_t>(random.Between(0, 60));
    for (size_t i = 0; i < count; ++i) {
      stays.push_back({.size = random.Between(1, 1000),
                       .from = i,
                       .until = i + 1 + random.Below(1 + random.Below(40))});
    }
    const MemoryPlaces places = PlaceStays(stays, 1);
    ExpectApart(stays, places);
    const int64_t most = MostAtOnce(stays);
    EXPECT_GE(places.capacity, most);
    EXPECT_LE(places.capacity, most + most / 2);
    capacities += static_cast<double>(places.capacity);
    needed += static_cast<double>(most);
    // If any stretch is enough, they lie as they come.
    const MemoryPlaces simple = PlaceStays(stays, 1, 1'000'000);
    ExpectApart(stays, simple);
    as_they_come += static_cast<double>(simple.capacity);
  }
  EXPECT_LE(capacities, 1.05 * needed);
  EXPECT_GT(as_they_come, 1.02 * capacities);
}

TEST(PlaceStays, AlignsAndUsesAgainWhatIsFree) {
  const std::vector<MemoryStay> stays = {{.size = 100, .from = 0, .until = 2},
                                         {.size = 10, .from = 1, .until = 4},
                                         {.size = 128, .from = 2, .until = 5}};
  const MemoryPlaces places = PlaceStays(stays, 64);
  EXPECT_THAT(places.begins, testing::ElementsAre(0, 128, 0));
  EXPECT_EQ(places.capacity, 192);
}

TEST(PlaceStays, LargePiecesChooseFirstWhereOrderOfComingLosesMemory) {
  // Placed as they come, the small one is in the way of the last.
  const std::vector<MemoryStay> stays = {{.size = 10, .from = 0, .until = 1},
                                         {.size = 2, .from = 1, .until = 4},
                                         {.size = 6, .from = 2, .until = 3},
                                         {.size = 10, .from = 3, .until = 5}};
  const MemoryPlaces places = PlaceStays(stays, 1);
  ExpectApart(stays, places);
  EXPECT_EQ(places.capacity, MostAtOnce(stays));
}

}  // namespace
}  // namespace shoal::plan
