#include "server/coordinator/step/worker_groups.h"

#include "gtest/gtest.h"

namespace shoal::server {
namespace {

TEST(WorkerGroups, WorkersInTurnAreAGroup) {
  const WorkerGroups groups(6, 3);
  EXPECT_EQ(groups.groups(), 2U);
  EXPECT_EQ(groups.GroupOf(4), 1U);
  EXPECT_EQ(groups.StageOf(4), 1U);
  EXPECT_EQ(groups.WorkerAt(1, 1), 4U);
  EXPECT_EQ(groups.Place(4), "stage 1 of group 1");
  EXPECT_EQ(WorkerGroups(6, 1).Place(4), "");
  EXPECT_EQ(WorkerGroups(6, 1).groups(), 6U);
}

TEST(WorkerGroups, TheSlowestStageSetsThePace) {
  const WorkerGroups groups(6, 3);
  const std::vector<double> busy = {1, 3, 2, 5, 0, 4};
  EXPECT_EQ(groups.PaceOf(0, busy), 1U);
  EXPECT_EQ(groups.PaceOf(1, busy), 3U);
  EXPECT_EQ(WorkerGroups(6, 1).PaceOf(4, busy), 4U);
}

}  // namespace
}  // namespace shoal::server
