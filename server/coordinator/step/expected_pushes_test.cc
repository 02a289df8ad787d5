#include "server/coordinator/step/expected_pushes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using proto::NextStepRequest;
using ::testing::ElementsAre;

// Two units of 256 elements in two partitions each. The second stage has the second unit and makes
// two pushes for the first, whose matrix it shares.
PushPlan TwoStages() {
  return {.partitions = {{.id = 0, .unit = 0, .offset = 0, .count = 128},
                         {.id = 1, .unit = 0, .offset = 128, .count = 128},
                         {.id = 2, .unit = 1, .offset = 0, .count = 128},
                         {.id = 3, .unit = 1, .offset = 128, .count = 128}},
          .unit_elements = {256, 256},
          .per_pack = {{1, 0}, {2, 1}}};
}

// By partition.
std::vector<int64_t> Expected(const PushPlan& plan, const std::vector<PushedWork>& works,
                              int ranks) {
  const ExpectedPushes expected(plan, works, ranks);
  std::vector<int64_t> pushes;
  for (const plan::PartitionSpec& partition : plan.partitions) {
    pushes.push_back(expected.Of(partition));
  }
  return pushes;
}

TEST(ExpectedPushes, EachPackAsOftenAsItsStagesPush) {
  EXPECT_THAT(Expected(TwoStages(), {{.stage = 0, .packs = 3}, {.stage = 1, .packs = 3}}, 2),
              ElementsAre(9, 9, 3, 3));
}

TEST(MostPushes, AreThoseOfPacksThatAreAllPushedByThemselves) {
  EXPECT_THAT(MostPushes(TwoStages(), 3), ElementsAre(9, 3));
}

TEST(ExpectedPushes, ASumOnceForEachRoundThatHadPacks) {
  const auto how = NextStepRequest::PUSHES_OF_STEPS;
  EXPECT_THAT(Expected(TwoStages(),
                       {{.stage = 0, .how = how, .packs = 3},
                        {.stage = 0, .how = how, .packs = 0},
                        {.stage = 0, .how = how, .packs = 3, .rounds = 2},
                        {.stage = 1, .packs = 3}},
                       3),
              ElementsAre(9, 9, 3, 3));
}

// Of 256 elements, three shards of 128, 128 and none.
TEST(ExpectedPushes, ShardsWhereTheyOverlap) {
  const auto how = NextStepRequest::PUSHES_OF_SHARDS;
  PushPlan plan = TwoStages();
  plan.per_pack = {{1, 1}};
  plan.partitions[0].count = 64;  // the second has a part of both shards
  plan.partitions[1].offset = 64;
  plan.partitions[1].count = 192;
  std::vector<PushedWork> works;
  for (int rank = 0; rank < 3; ++rank) {
    works.push_back({.rank = rank, .how = how, .packs = 4});
  }
  EXPECT_THAT(Expected(plan, works, 3), ElementsAre(1, 2, 1, 1));
}

}  // namespace
}  // namespace shoal::server
