#include "server/coordinator/job/takeover.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;
using What = TakeoverDecision::What;

constexpr int64_t kGeneration = 1;

proto::CommitRequest Commit(int64_t step, int64_t attempt) {
  proto::CommitRequest commit;
  commit.set_step(step);
  commit.set_attempt(attempt);
  commit.set_learning_rate(0.5 * static_cast<double>(step));
  commit.set_clip_coefficient(0.25);
  commit.set_loss(3);
  commit.set_grad_norm(7);
  return commit;
}

ServerAnswer At(int64_t version, int64_t step, int64_t attempt, proto::AttemptPhase phase,
                int64_t committed_attempt = 1) {
  ServerAnswer answer = {.server = "server 1", .holds = true, .at = {}};
  answer.at.set_version(version);
  answer.at.set_generation(kGeneration);
  answer.at.set_step(step);
  answer.at.set_attempt(attempt);
  answer.at.set_phase(phase);
  if (version > 0) {
    *answer.at.mutable_committed() = Commit(version, committed_attempt);
  }
  return answer;
}

// Published, and nothing begun since.
ServerAnswer Ready(int64_t version, int64_t attempt = 1) {
  return At(version, version, attempt, proto::ATTEMPT_PHASE_NONE, attempt);
}
ServerAnswer Open(int64_t step, int64_t attempt) {
  return At(step - 1, step, attempt, proto::ATTEMPT_PHASE_OPEN);
}
ServerAnswer Sealed(int64_t step, int64_t attempt) {
  return At(step - 1, step, attempt, proto::ATTEMPT_PHASE_SEALED);
}
ServerAnswer Failed(int64_t step, int64_t attempt) {
  return At(step - 1, step, attempt, proto::ATTEMPT_PHASE_FAILED);
}
ServerAnswer NotHere() { return {.server = "server 1", .holds = false, .at = {}}; }

RecordedRun Recorded(int64_t step, int64_t attempt = 1) {
  RecordedRun run = {.first_version = 0, .generation = kGeneration, .commit = std::nullopt};
  if (step > 0) {
    run.commit = {.step = step,
                  .attempt = attempt,
                  .learning_rate = 0.125,
                  .clip_coefficient = 1,
                  .generation = kGeneration,
                  .event = {}};
    run.commit->event.set_loss(2);
  }
  return run;
}

TEST(Takeover, BeforeAnyCommitTheFirstStepBegins) {
  for (const auto& servers : std::vector<std::vector<ServerAnswer>>{
           {At(0, 0, 0, proto::ATTEMPT_PHASE_NONE), At(0, 0, 0, proto::ATTEMPT_PHASE_NONE)},
           {Open(1, 2), At(0, 0, 0, proto::ATTEMPT_PHASE_NONE)},
           {Sealed(1, 1), Open(1, 2)},
           {Failed(1, 2), Sealed(1, 1)}}) {
    const TakeoverDecision decision = DecideTakeover(Recorded(0), servers);
    EXPECT_EQ(decision.what, What::kTrain) << decision.message;
    EXPECT_EQ(decision.version, 0);
    EXPECT_EQ(decision.attempt, std::max(servers[0].at.attempt(), servers[1].at.attempt()));
    EXPECT_EQ(decision.commit.step, 0);
  }
}

TEST(Takeover, InTheMiddleTheNextAttemptIsHigherThanAllSeen) {
  for (const auto& servers : std::vector<std::vector<ServerAnswer>>{{Ready(4), Ready(4)},
                                                                    {Open(5, 3), Ready(4)},
                                                                    {Sealed(5, 2), Open(5, 3)},
                                                                    {Sealed(5, 1), Sealed(5, 1)},
                                                                    {Failed(5, 2), Ready(4)}}) {
    const TakeoverDecision decision = DecideTakeover(Recorded(4), servers);
    EXPECT_EQ(decision.what, What::kTrain) << decision.message;
    EXPECT_EQ(decision.version, 4);
    EXPECT_EQ(decision.commit.step, 4);
    EXPECT_EQ(decision.commit.learning_rate, 0.125) << "the record's";
    int64_t seen = 0;
    for (const ServerAnswer& server : servers) {
      seen = std::max(seen, server.at.step() == 5 ? server.at.attempt() : 0);
    }
    EXPECT_EQ(decision.attempt, seen);
  }
}

TEST(Takeover, ARecordedCommitIsRepeated) {
  for (const auto& servers : std::vector<std::vector<ServerAnswer>>{{Sealed(4, 2), Sealed(4, 2)},
                                                                    {Ready(4, 2), Sealed(4, 2)},
                                                                    {Sealed(4, 2), Ready(4, 2)}}) {
    const TakeoverDecision decision = DecideTakeover(Recorded(4, 2), servers);
    EXPECT_EQ(decision.what, What::kCommit) << decision.message;
    EXPECT_EQ(decision.version, 4);
    EXPECT_EQ(decision.attempt, 0);
    EXPECT_EQ(decision.commit.attempt, 2);
    EXPECT_EQ(decision.commit.learning_rate, 0.125);
    EXPECT_EQ(decision.commit.event.loss(), 2);
  }
}

TEST(Takeover, WhatServersSayWinsOverALostTail) {
  for (const int64_t recorded : {0, 1, 3}) {
    const TakeoverDecision all = DecideTakeover(Recorded(recorded), {Ready(4), Open(5, 2)});
    EXPECT_EQ(all.what, What::kTrain) << all.message;
    EXPECT_EQ(all.version, 4);
    EXPECT_EQ(all.attempt, 2);
    EXPECT_EQ(all.commit.event.loss(), 3);
    EXPECT_EQ(all.commit.event.grad_norm(), 7);
    const TakeoverDecision one = DecideTakeover(Recorded(recorded), {Ready(4), Sealed(4, 1)});
    EXPECT_EQ(one.what, What::kCommit) << one.message;
    EXPECT_EQ(one.commit.step, 4);
    EXPECT_EQ(one.commit.learning_rate, 2);
    EXPECT_EQ(one.commit.clip_coefficient, 0.25);
  }
}

TEST(Takeover, WhoCannotCommitWhatIsCommittedHasLostIt) {
  for (const ServerAnswer& server :
       {Open(4, 1), Sealed(4, 2), Failed(4, 1), Ready(3), Ready(2), Sealed(3, 1)}) {
    const TakeoverDecision decision = DecideTakeover(Recorded(4), {Ready(4), server});
    EXPECT_EQ(decision.what, What::kRestart);
    EXPECT_THAT(decision.message, HasSubstr("server 1 has version"));
    EXPECT_THAT(decision.message, HasSubstr("step 4 attempt 1 is committed"));
  }
}

TEST(Takeover, AServerWithoutTheJob) {
  const TakeoverDecision loading =
      DecideTakeover(Recorded(0), {At(0, 0, 0, proto::ATTEMPT_PHASE_NONE), NotHere()});
  EXPECT_EQ(loading.what, What::kConfigure);
  EXPECT_EQ(loading.attempt, 0);
  EXPECT_EQ(DecideTakeover(Recorded(0), {NotHere(), NotHere()}).what, What::kConfigure);
  const TakeoverDecision began =
      DecideTakeover(Recorded(0), {At(0, 1, 2, proto::ATTEMPT_PHASE_SEALED), NotHere()});
  EXPECT_EQ(began.what, What::kConfigure);
  EXPECT_EQ(began.attempt, 2);
  for (const RecordedRun& run : {Recorded(4), Recorded(0)}) {
    const TakeoverDecision lost = DecideTakeover(run, {Ready(4), NotHere()});
    EXPECT_EQ(lost.what, What::kRestart);
    EXPECT_THAT(lost.message, HasSubstr("server 1 no longer holds the job"));
  }
}

TEST(Takeover, ARunFromACheckpoint) {
  RecordedRun run = Recorded(0);
  run.first_version = 10;
  ServerAnswer loaded = At(10, 0, 0, proto::ATTEMPT_PHASE_NONE);
  loaded.at.clear_committed();
  const TakeoverDecision fresh = DecideTakeover(run, {loaded, loaded});
  EXPECT_EQ(fresh.what, What::kTrain) << fresh.message;
  EXPECT_EQ(fresh.version, 10);
  EXPECT_EQ(fresh.commit.step, 0);
  EXPECT_EQ(DecideTakeover(run, {loaded, NotHere()}).what, What::kConfigure);
  ServerAnswer sealed = Sealed(11, 1);
  sealed.at.clear_committed();
  run.commit = {.step = 11, .attempt = 1, .event = {}};
  EXPECT_EQ(DecideTakeover(run, {Ready(11), sealed}).what, What::kCommit);
}

TEST(Takeover, AnotherShardMapIsAnotherRun) {
  ServerAnswer other = Ready(4);
  other.at.set_generation(2);
  const TakeoverDecision decision = DecideTakeover(Recorded(4), {Ready(4), other});
  EXPECT_EQ(decision.what, What::kRestart);
  EXPECT_THAT(decision.message, HasSubstr("generation 2 of the shard map instead of 1"));
}

}  // namespace
}  // namespace shoal::server
