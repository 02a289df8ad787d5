#include "server/service/step_state.h"

#include "gtest/gtest.h"

namespace shoal::server {
namespace {

StepState Ready(int64_t version = 0) { return StepState(version, /*generation=*/3); }

TEST(StepState, WalksThroughAStepAndAnswersRepeats) {
  StepState state = Ready(4);
  EXPECT_EQ(*state.BeginAttempt(5, 1, 3), Decision::kExecute);
  state.Opened(5, 1);
  EXPECT_EQ(*state.BeginAttempt(5, 1, 3), Decision::kRepeat);
  EXPECT_FALSE(state.Commit(5, 1).ok());
  EXPECT_EQ(*state.Prepare(5, 1), Decision::kExecute);
  state.Sealed();
  EXPECT_EQ(*state.Prepare(5, 1), Decision::kRepeat);
  EXPECT_FALSE(state.BeginAttempt(5, 1, 3).ok());
  EXPECT_EQ(*state.Commit(5, 1), Decision::kExecute);
  state.Committing();
  state.Committed();
  EXPECT_EQ(state.version(), 5);
  EXPECT_EQ(*state.Commit(5, 1), Decision::kRepeat);
  EXPECT_FALSE(state.Commit(5, 2).ok());
  EXPECT_FALSE(state.Prepare(5, 1).ok());
  EXPECT_FALSE(state.BeginAttempt(5, 2, 3).ok());
  EXPECT_EQ(*state.BeginAttempt(6, 1, 3), Decision::kExecute);
}

TEST(StepState, ANewerAttemptDropsTheOneBefore) {
  StepState state = Ready();
  state.Opened(1, 1);
  EXPECT_EQ(*state.BeginAttempt(1, 2, 3), Decision::kExecute);
  state.Opened(1, 2);
  state.Sealed();
  EXPECT_EQ(*state.BeginAttempt(1, 3, 3), Decision::kExecute);
  state.Opened(1, 3);
  // Commands of earlier attempts come too late.
  EXPECT_FALSE(state.BeginAttempt(1, 2, 3).ok());
  EXPECT_FALSE(state.Prepare(1, 2).ok());
  EXPECT_FALSE(state.Commit(1, 2).ok());
  EXPECT_FALSE(state.IsCurrentAttempt(1, 2));
  EXPECT_TRUE(state.IsCurrentAttempt(1, 3));
}

TEST(StepState, RefusalsNameBothSides) {
  StepState state = Ready(7);
  EXPECT_EQ(state.BeginAttempt(9, 1, 3).status().message(),
            "cannot begin step 9 attempt 1: version 7 is published and no attempt is open, so the "
            "next step is 8");
  EXPECT_EQ(state.BeginAttempt(8, 1, 2).status().message(),
            "BeginAttempt of step 8 is for shard map generation 2, this server has 3");
  EXPECT_FALSE(state.BeginAttempt(8, 0, 3).ok());
}

}  // namespace
}  // namespace shoal::server
