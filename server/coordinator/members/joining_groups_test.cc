#include "server/coordinator/members/joining_groups.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

Member Worker(uint64_t incarnation) {
  return {.role = proto::ROLE_WORKER, .incarnation = incarnation};
}

std::vector<uint64_t> Workers(const JoiningGroups::Group& group) {
  std::vector<uint64_t> incarnations;
  for (const Member& worker : group.workers) {
    incarnations.push_back(worker.incarnation);
  }
  return incarnations;
}

TEST(JoiningGroupsTest, AGroupIsMadeOfTheFirstSparesAndReadyOnceAllHaveAsked) {
  JoiningGroups joining;
  joining.Add(Worker(1));
  joining.Ask(1);  // it has no group
  joining.Add(Worker(2));
  joining.Add(Worker(3));
  EXPECT_EQ(joining.spares(), 3u);
  joining.Form(2, 7);
  EXPECT_EQ(joining.spares(), 1u);
  ASSERT_NE(joining.GroupOf(2), nullptr);
  EXPECT_EQ(joining.GroupOf(2)->formation, 7);
  EXPECT_THAT(Workers(*joining.GroupOf(2)), ElementsAre(1, 2));
  EXPECT_EQ(joining.GroupOf(3), nullptr);
  EXPECT_TRUE(joining.Has(3));
  EXPECT_EQ(joining.size(), 3);
  joining.Ask(2);
  joining.Ask(2);
  EXPECT_EQ(joining.ready(), 0);
  EXPECT_THAT(joining.TakeReady(), SizeIs(0));
  joining.Ask(1);
  EXPECT_EQ(joining.ready(), 2);
  EXPECT_THAT(joining.TakeReady(), SizeIs(1));
  EXPECT_EQ(joining.size(), 1);
  EXPECT_FALSE(joining.Has(1));
}

TEST(JoiningGroupsTest, WhatIsLeftOfAGroupIsFirstInTheNext) {
  JoiningGroups joining;
  for (const uint64_t incarnation : {1, 2, 3}) {
    joining.Add(Worker(incarnation));
  }
  joining.Form(2, 1);
  joining.Ask(1);
  joining.Ask(2);
  EXPECT_TRUE(joining.Remove(1));
  EXPECT_FALSE(joining.Remove(1));
  EXPECT_EQ(joining.ready(), 0);
  EXPECT_EQ(joining.spares(), 2u);
  const JoiningGroups::Group& next = joining.Form(2, 2);
  EXPECT_THAT(Workers(next), ElementsAre(2, 3));
  EXPECT_FALSE(next.ready()) << "what it asked was of another group";
  EXPECT_TRUE(joining.Remove(3));
  EXPECT_TRUE(joining.Has(2));
}

// Their workers may not ask again before the next step begins.
TEST(JoiningGroupsTest, WhoIsReadyStaysSoUnderAnotherFormation) {
  JoiningGroups joining;
  for (const uint64_t incarnation : {1, 2, 3, 4}) {
    joining.Add(Worker(incarnation));
  }
  joining.Form(2, 1);
  joining.Form(2, 2);
  for (const uint64_t incarnation : {1, 2, 3}) {
    joining.Ask(incarnation);
  }
  joining.Reform(7);
  EXPECT_EQ(joining.GroupOf(1)->formation, 7);
  EXPECT_EQ(joining.GroupOf(3)->formation, 7);
  EXPECT_EQ(joining.ready(), 2);
  joining.Ask(4);
  EXPECT_EQ(joining.ready(), 4) << "3 had asked before";
}

}  // namespace
}  // namespace shoal::server
