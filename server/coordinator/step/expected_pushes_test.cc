#include "server/coordinator/step/expected_pushes.h"

#include "core/base/status.h"
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

proto::PrepareReply Prepared(const std::vector<std::pair<int, int64_t>>& partitions) {
  proto::PrepareReply reply;
  for (const auto& [partition, pushes] : partitions) {
    reply.add_partitions(partition);
    reply.add_sums_of_squares(0);
    reply.add_non_finite(0);
    reply.add_pushes(pushes);
  }
  return reply;
}

TEST(ExpectedPushes, EachPackAsOftenAsItsStagesPush) {
  EXPECT_THAT(ExpectedPushes(TwoStages(), {{.stage = 0, .packs = 3}, {.stage = 1, .packs = 3}}, 2),
              ElementsAre(9, 9, 3, 3));
}

TEST(MostPushes, AreThoseOfPacksThatAreAllPushedByThemselves) {
  EXPECT_THAT(MostPushes(TwoStages(), 3), ElementsAre(9, 3));
}

TEST(ExpectedPushes, ASumOnceForEachRoundThatHadPacks) {
  const auto how = NextStepRequest::PUSHES_OF_STEPS;
  EXPECT_THAT(ExpectedPushes(TwoStages(),
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
  EXPECT_THAT(ExpectedPushes(plan, works, 3), ElementsAre(1, 2, 1, 1));
}

TEST(ExpectedPushes, WhatServersCountedIsCompared) {
  EXPECT_TRUE(CheckPushes({3, 4, 4}, {Prepared({{0, 3}, {2, 4}}), Prepared({{1, 4}})}).ok());
  const absl::Status lost =
      CheckPushes({3, 4, 4}, {Prepared({{0, 3}, {2, 4}}), Prepared({{1, 3}})});
  EXPECT_TRUE(absl::IsAborted(lost));
  EXPECT_EQ(Message(lost), "server 1 took 3 pushes of partition 1, and the step's packs make 4");
  EXPECT_FALSE(CheckPushes({3}, {Prepared({{1, 3}})}).ok());
  EXPECT_FALSE(CheckPushes({3}, {Prepared({{-1, 3}})}).ok());
}

}  // namespace
}  // namespace shoal::server
