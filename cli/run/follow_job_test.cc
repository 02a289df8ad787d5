#include "cli/run/follow_job.h"

#include <sstream>

#include "cli/run/train_report.h"
#include "cli/testing/fake_coordinator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JobRunTest : public testing::Test {
 protected:
  RunEnd Follow(FollowOptions options, bool json = true) {
    options.job_id = FakeCoordinator::kJob;
    TrainReport report(streams_, json);
    const RunEnd end = FollowJob(coordinator_.Connect(), coordinator_.Connect(), options, report);
    report.PrintEnd(end);
    return end;
  }
  std::vector<nlohmann::json> Lines() const {
    std::vector<nlohmann::json> lines;
    std::istringstream text(out_.str());
    for (std::string line; std::getline(text, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  FakeCoordinator coordinator_;
  std::ostringstream out_;
  std::ostringstream err_;
  Streams streams_{out_, err_, {}, {}};
};

TEST_F(JobRunTest, StepsAndDoneAreJsonLinesWithTheDocumentedFields) {
  coordinator_.AddStep(1, 2.5);
  coordinator_.AddStep(2, 2.25);
  coordinator_.AddDone(2, false);
  EXPECT_EQ(Follow({}).kind, RunEnd::Kind::kReached);
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  for (const auto* field :
       {"event", "step", "loss", "grad_norm", "learning_rate", "tokens", "target_tokens",
        "step_seconds", "tokens_per_second", "idle_share", "predicted_idle_share"}) {
    EXPECT_TRUE(lines[0].contains(field)) << field;
  }
  EXPECT_EQ(lines[0].size(), 11u);
  EXPECT_EQ(lines[1]["loss"], 2.25);
  EXPECT_EQ(lines[2]["event"], "done");
  EXPECT_EQ(lines[2]["checkpoint"], "checkpoints/step");
  EXPECT_EQ(lines[2].size(), 4u);
}

// After the loss of power its next life does not know that it was told.
TEST_F(JobRunTest, AStepThatALaterLifeTellsAgainIsShownOnce) {
  coordinator_.AddStep(1, 2.5);
  coordinator_.AddStep(2, 2.25);
  proto::JobEvent again;
  again.set_term(2);
  again.mutable_step()->set_step(2);
  again.mutable_step()->set_loss(2.25);
  coordinator_.Add(again);
  proto::JobEvent done;
  done.set_term(2);
  done.mutable_done()->set_step(2);
  coordinator_.Add(done);
  Follow({});
  EXPECT_EQ(Lines().size(), 3u) << out_.str();
}

// Takes the coordinator away after the first step, and back once somebody waits for it.
class AwayAfterAStep : public TrainReport {
 public:
  AwayAfterAStep(Streams& streams, FakeCoordinator& coordinator)
      : TrainReport(streams, true), coordinator_(coordinator) {
    coordinator_.AddStep(1, 2.5);
  }
  void OnStep(const proto::StepEvent& event) override {
    TrainReport::OnStep(event);
    if (event.step() == 1) {
      coordinator_.Shutdown();
    }
  }
  void OnNotice(const std::string& text) override {
    notices.push_back(text);
    if (notices.size() == 1) {
      coordinator_.AddStep(2, 2.25);
      coordinator_.AddDone(2, false);
      coordinator_.Restart();
    }
  }
  std::vector<std::string> notices;

 private:
  FakeCoordinator& coordinator_;
};

TEST_F(JobRunTest, ACoordinatorThatIsAwayIsWaitedForAsLongAsItSaid) {
  coordinator_.set_patience(absl::Minutes(2));
  AwayAfterAStep report(streams_, coordinator_);
  const RunEnd end =
      FollowJob(coordinator_.Connect(), coordinator_.Connect(),
                {.job_id = FakeCoordinator::kJob, .patience = absl::Milliseconds(1)}, report);
  EXPECT_EQ(end.kind, RunEnd::Kind::kReached) << end.message;
  EXPECT_EQ(end.step, 2);
  EXPECT_THAT(report.notices, ElementsAre(HasSubstr("; waiting for it for 2m00s at most"),
                                          "the coordinator answers again"));
}

// Its supervisor starts it again, or knows that it is gone for good.
TEST_F(JobRunTest, ALocalCoordinatorIsNotWaitedForAsLong) {
  coordinator_.set_patience(absl::Minutes(2));
  AwayAfterAStep report(streams_, coordinator_);
  const RunEnd end = FollowJob(
      coordinator_.Connect(), coordinator_.Connect(),
      {.job_id = FakeCoordinator::kJob, .patience = absl::Milliseconds(1), .as_told = false},
      report);
  EXPECT_EQ(end.kind, RunEnd::Kind::kFailed);
  EXPECT_THAT(report.notices, ::testing::IsEmpty());
}

TEST_F(JobRunTest, AWarningIsANotice) {
  proto::JobEvent event;
  event.set_warning("bits may differ");
  coordinator_.Add(event);
  coordinator_.AddDone(1, false);
  Follow({});
  EXPECT_EQ(err_.str(), "warning: bits may differ\n");
}

TEST_F(JobRunTest, PlainLinesWhereNobodyIsAtATerminal) {
  coordinator_.AddStep(1, 2.5);
  coordinator_.AddDone(1, false);
  Follow({}, false);
  EXPECT_THAT(out_.str(), HasSubstr("step 1/10, loss 2.5000"));
}

TEST_F(JobRunTest, AStopRequestBecomesACheckpointAndAnInterruptedEnd) {
  coordinator_.AddStep(1, 2.5);
  coordinator_.set_stops(true);
  const RunEnd end =
      Follow({.stop_requests = [] { return 1; }, .stop_reason = [] { return "Ctrl-C"; }});
  EXPECT_EQ(end.kind, RunEnd::Kind::kInterrupted);
  EXPECT_EQ(end.checkpoint, "checkpoints/step");
  EXPECT_EQ(coordinator_.stop_reason(), "Ctrl-C");
  EXPECT_THAT(err_.str(), HasSubstr("Ctrl-C"));
  EXPECT_EQ(Lines().back()["event"], "interrupted");
}

// Adds the next step after each one, until a stop is requested.
class EndlessSteps : public TrainReport {
 public:
  EndlessSteps(Streams& streams, FakeCoordinator& coordinator)
      : TrainReport(streams, true), coordinator_(coordinator) {
    coordinator_.AddStep(1, 2.5);
  }
  void OnStep(const proto::StepEvent& event) override {
    steps_ = event.step();
    if (coordinator_.stop_reason().empty() && steps_ < kMost) {
      coordinator_.AddStep(steps_ + 1, 2.5);
    }
  }
  int64_t steps() const { return steps_; }
  static constexpr int64_t kMost = 300;

 private:
  FakeCoordinator& coordinator_;
  int64_t steps_ = 0;
};

TEST_F(JobRunTest, AStopRequestIsHeardBetweenStepsWithoutAPause) {
  coordinator_.set_stops(true);
  EndlessSteps report(streams_, coordinator_);
  const RunEnd end = FollowJob(coordinator_.Connect(), coordinator_.Connect(),
                               {.job_id = FakeCoordinator::kJob,
                                .stop_requests = [] { return 1; },
                                .stop_reason = [] { return "SIGTERM"; }},
                               report);
  EXPECT_EQ(end.kind, RunEnd::Kind::kInterrupted);
  EXPECT_LT(report.steps(), EndlessSteps::kMost);
}

TEST_F(JobRunTest, ASecondStopRequestDoesNotWaitForTheCheckpoint) {
  const RunEnd end =
      Follow({.stop_requests = [] { return 2; }, .stop_reason = [] { return "Ctrl-C"; }});
  EXPECT_EQ(end.kind, RunEnd::Kind::kInterrupted);
  EXPECT_EQ(end.checkpoint, "");
}

TEST_F(JobRunTest, TheFirstCommittedStepIsToldOnce) {
  int told = 0;
  coordinator_.AddStep(1, 2.0);
  coordinator_.AddStep(2, 1.0);
  coordinator_.AddDone(2, false);
  EXPECT_EQ(Follow({.on_first_step = [&] { ++told; }}).kind, RunEnd::Kind::kReached);
  EXPECT_EQ(told, 1);
}

TEST_F(JobRunTest, FailureAndNonFiniteAreToldApart) {
  coordinator_.AddFailed("worker-1 was lost", false);
  const RunEnd end = Follow({});
  EXPECT_EQ(end.kind, RunEnd::Kind::kFailed);
  EXPECT_EQ(end.message, "worker-1 was lost");
  FakeCoordinator other;
  other.AddFailed("loss of step 3 is not finite", true);
  TrainReport report(streams_, true);
  EXPECT_EQ(
      FollowJob(other.Connect(), other.Connect(), {.job_id = FakeCoordinator::kJob}, report).kind,
      RunEnd::Kind::kNonFinite);
}

TEST_F(JobRunTest, ADeadProcessEndsTheRunByNameWithACheckpoint) {
  coordinator_.set_stops(true);
  const RunEnd end = Follow(
      {.check_processes = [] { return Unavailable("worker-1 (pid 7) was killed by SIGKILL"); }});
  EXPECT_EQ(end.kind, RunEnd::Kind::kFailed);
  EXPECT_EQ(end.message, "worker-1 (pid 7) was killed by SIGKILL");
  EXPECT_EQ(coordinator_.stop_reason(), end.message);
  EXPECT_EQ(end.checkpoint, "checkpoints/step");
}

TEST_F(JobRunTest, ADeadCoordinatorEndsTheRunByName) {
  coordinator_.Shutdown();
  const RunEnd end = Follow(
      {.check_processes = [] { return Unavailable("coordinator (pid 7) was killed by SIGKILL"); }});
  EXPECT_EQ(end.kind, RunEnd::Kind::kFailed);
  EXPECT_THAT(end.message, HasSubstr("coordinator (pid 7)"));
}

TEST_F(JobRunTest, WhatTheCoordinatorKnowsIsToldWithIt) {
  int calls = 0;
  const RunEnd end = Follow({.check_processes = [&] {
    if (++calls == 1) {
      return absl::OkStatus();
    }
    coordinator_.AddFailed("worker-0: out of memory", false);
    return Unavailable("worker-0 (pid 7) exited with status 1");
  }});
  EXPECT_THAT(end.message, HasSubstr("out of memory"));
  EXPECT_THAT(end.message, HasSubstr("exited with status 1"));
}

}  // namespace
}  // namespace shoal::cli
