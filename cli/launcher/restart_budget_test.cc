#include "cli/launcher/restart_budget.h"

#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(RestartBudget, GivesSoManyInAPeriod) {
  RestartBudget budget(3, absl::Minutes(10));
  EXPECT_EQ(budget.Take(kStart), 1u);
  EXPECT_EQ(budget.Take(kStart + absl::Minutes(1)), 2u);
  EXPECT_EQ(budget.Take(kStart + absl::Minutes(9)), 3u);
  EXPECT_EQ(budget.Take(kStart + absl::Minutes(9)), 0u);
}

TEST(RestartBudget, HasOneMoreWhenTheOldestIsAPeriodAgo) {
  RestartBudget budget(2, absl::Minutes(10));
  budget.Take(kStart);
  budget.Take(kStart + absl::Minutes(5));
  EXPECT_EQ(budget.Take(kStart + absl::Minutes(10) - absl::Seconds(1)), 0u);
  EXPECT_EQ(budget.Take(kStart + absl::Minutes(10)), 2u) << "what was refused does not count";
  EXPECT_EQ(budget.Take(kStart + absl::Minutes(11)), 0u);
  EXPECT_EQ(budget.Take(kStart + absl::Minutes(60)), 1u);
}

TEST(RestartBudget, OfNoneGivesNone) {
  RestartBudget budget(0, absl::Minutes(10));
  EXPECT_EQ(budget.Take(kStart), 0u);
}

}  // namespace
}  // namespace shoal::cli
