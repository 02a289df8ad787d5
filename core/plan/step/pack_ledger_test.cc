#include "core/plan/step/pack_ledger.h"

#include "core/base/status.h"
#include "core/plan/step/hand_over.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Pack n has 10 + n tokens and n + 1 targets.
StepPlan PlanOf(int64_t packs) {
  StepPlan plan;
  plan.workers.resize(2);
  for (int64_t number = 0; number < packs; ++number) {
    plan.workers[static_cast<size_t>(number % 2)].push_back(
        {.samples = {number}, .tokens = 10 + number, .targets = number + 1, .number = number});
  }
  return plan;
}

PackResult ResultOf(int64_t number, double loss) {
  return {.number = number, .loss_sum = loss, .tokens = 10 + number, .targets = number + 1};
}

TEST(PackLedger, APackIsDoneOnceAllStagesHaveRunIt) {
  PackLedger ledger(PlanOf(2), /*stages=*/2);
  ledger.Give(0, 0);
  ledger.Give(1, 1);
  EXPECT_EQ(ledger.Left(0, 1), 1);
  EXPECT_TRUE(ledger.Done(0, 0, ResultOf(0, 0)).ok());
  EXPECT_TRUE(ledger.Done(0, 0, ResultOf(0, 0)).ok());  // again
  EXPECT_FALSE(ledger.done());
  EXPECT_TRUE(ledger.Done(0, 1, ResultOf(0, 0.5)).ok());
  EXPECT_EQ(ledger.Ran(0, 1), 1);
  EXPECT_TRUE(ledger.Done(1, 1, ResultOf(1, 0.25)).ok());
  EXPECT_FALSE(ledger.done());
  EXPECT_TRUE(ledger.Done(1, 0, ResultOf(1, 0)).ok());
  EXPECT_TRUE(ledger.done());
  EXPECT_EQ(ledger.LossSum(), 0.75);
}

TEST(PackLedger, WhatContradictsThePlanIsNamed) {
  PackLedger ledger(PlanOf(3), 1);
  ledger.Give(0, 0);
  EXPECT_EQ(Message(ledger.Done(0, 0, ResultOf(1, 1))),
            "it reports pack 1, which it was not given");
  EXPECT_FALSE(ledger.Done(1, 0, ResultOf(0, 1)).ok());
  EXPECT_FALSE(ledger.Done(0, 0, ResultOf(3, 1)).ok());
  EXPECT_FALSE(ledger.Done(0, 0, ResultOf(-1, 1)).ok());
  PackResult wrong = ResultOf(0, 1);
  ++wrong.targets;
  EXPECT_EQ(Message(ledger.Done(0, 0, wrong)),
            "it reports 10 tokens and 2 targets of pack 0, which has 10 and 1");
  EXPECT_EQ(ledger.Left(0, 0), 1);
}

TEST(PackLedger, WhatALostGroupHadInHandWaitsAgain) {
  PackLedger ledger(PlanOf(4), 1);
  for (int64_t number = 0; number < 4; ++number) {
    ledger.Give(number, static_cast<int>(number % 2));
  }
  EXPECT_TRUE(ledger.Done(0, 0, ResultOf(2, 7)).ok());
  EXPECT_THAT(ledger.TakeBack(0), ElementsAre(0));
  EXPECT_THAT(ledger.TakeBack(0), IsEmpty());
  EXPECT_FALSE(ledger.Done(0, 0, ResultOf(0, 1)).ok()) << "it is the group's no more";
  EXPECT_EQ(ledger.Ran(0, 0), 1) << "what it was done with stays";
  ledger.Give(0, 1);
  for (const int64_t number : {3, 0, 1}) {
    EXPECT_TRUE(ledger.Done(1, 0, ResultOf(number, 1)).ok());
  }
  EXPECT_TRUE(ledger.done());
  EXPECT_EQ(ledger.LossSum(), 10);
}

// Half a group's work on a pack counts for nothing.
TEST(PackLedger, APackThatIsTakenBackStartsAnew) {
  PackLedger ledger(PlanOf(1), 2);
  ledger.Give(0, 0);
  EXPECT_TRUE(ledger.Done(0, 1, ResultOf(0, 5)).ok());
  EXPECT_THAT(ledger.TakeBack(0), ElementsAre(0));
  ledger.Give(0, 1);
  EXPECT_EQ(ledger.Left(1, 1), 1);
  EXPECT_TRUE(ledger.Done(1, 0, ResultOf(0, 0)).ok());
  EXPECT_TRUE(ledger.Done(1, 1, ResultOf(0, 5)).ok());
  EXPECT_EQ(ledger.LossSum(), 5);
}

TEST(PackLedger, TheSumHasTheSameBitsInAnyOrder) {
  double sums[2];
  for (const int order : {0, 1}) {
    PackLedger ledger(PlanOf(3), 1);
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t number = order == 0 ? i : 2 - i;
      ledger.Give(number, order);
      EXPECT_TRUE(ledger.Done(order, 0, ResultOf(number, number == 0 ? 1e16 : 1)).ok());
    }
    sums[order] = ledger.LossSum();
  }
  EXPECT_EQ(sums[0], sums[1]);
}

TEST(HandOver, WhoHasLeastToDoTakesTheCostliestFirst) {
  StepPlan plan;
  plan.workers = {{{.cost = 4, .number = 0}, {.cost = 1, .number = 1}},
                  {{.cost = 3, .number = 2}},
                  {{.cost = 2, .number = 3}, {.cost = 5, .number = 4}}};
  EXPECT_THAT(HandOver(plan, {3, 4}, {false, false, true}),
              ElementsAre(std::pair<int64_t, int>(4, 1), std::pair<int64_t, int>(3, 0)));
  EXPECT_THAT(HandOver(plan, {0, 1}, {true, true, false}),
              ElementsAre(std::pair<int64_t, int>(0, 2), std::pair<int64_t, int>(1, 2)));
}

}  // namespace
}  // namespace shoal::plan
