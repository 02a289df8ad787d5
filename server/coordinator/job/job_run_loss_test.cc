// What becomes of a job under simulation when a server, a worker or the wish to go on is lost, at
// every point of a step.
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace shoal::server {
namespace {

using simulation::FaultKind;
using simulation::Faults;
using simulation::SimWorld;
using ::testing::ContainsRegex;
using testing::FakeDisk;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Points of a step where something can be lost; each is tried at its first and at a later occasion.
class LossTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(LossTest, ALostServerEndsTheJobByNameWithinTheLease) {
  const auto& [point, nth] = GetParam();
  SimWorld world({.steps = 6});
  absl::Time killed;
  world.At(point, nth, [&] {
    killed = world.loop.Now();
    world.KillServer(1);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_THAT(world.failure(), HasSubstr("lost server 1 (host sim, pid 101)"));
  EXPECT_FALSE(world.failed()->non_finite());
  EXPECT_LE(world.over_at, killed + absl::Seconds(12)) << "it asks for a successor first";
}

// Others do what it had in hand, and the steps are what they would have been.
TEST_P(LossTest, ALostWorkerCostsNoAttempt) {
  const auto& [point, nth] = GetParam();
  for (const bool draw : {false, true}) {
    SimWorld world({.steps = 6, .draw = draw});
    world.At(point, nth, [&] { world.KillWorker(2); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_EQ(world.done()->step(), 6);
    EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 0"));
  }
}

// Servers may have a part of its sum.
TEST_P(LossTest, ALostWorkerThatPushesSumsCostsAnAttemptAtMost) {
  const auto& [point, nth] = GetParam();
  for (const bool draw : {false, true}) {
    SimWorld world({.steps = 6, .draw = draw, .sums = true});
    world.At(point, nth, [&] { world.KillWorker(2); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_THAT(world.metrics.Text(), ContainsRegex("shoal_train_dropped_attempts_total [01]\n"));
  }
}

// It pushes what it ran, and others run the rest; or it has no time for that.
TEST_P(LossTest, AWorkerThatIsToldToLeaveCostsNoAttempt) {
  const auto& [point, nth] = GetParam();
  for (const absl::Duration grace : {absl::Minutes(1), absl::ZeroDuration()}) {
    for (const bool draw : {false, true}) {
      SimWorld world({.steps = 6, .draw = draw});
      world.At(point, nth, [&] { world.DrainWorker(2, grace); });
      ASSERT_THAT(world.RunAndCheck(), IsEmpty());
      ASSERT_TRUE(world.done().has_value()) << world.failure();
      EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 0"));
    }
  }
}

// Its group runs all that it has in hand first.
TEST_P(LossTest, AStageThatIsToldToLeaveCostsNoAttempt) {
  const auto& [point, nth] = GetParam();
  for (const int stages : {2, 3}) {
    SimWorld world({.workers = 2 * stages, .stages = stages, .steps = 6});
    world.At(point, nth, [&] { world.DrainWorker(1); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 0"));
  }
}

// What others run of its packs would be another sum.
TEST_P(LossTest, OneThatPushesSumsAndIsToldToLeaveCostsAnAttemptAtMost) {
  const auto& [point, nth] = GetParam();
  for (const bool draw : {false, true}) {
    SimWorld world({.steps = 6, .draw = draw, .sums = true});
    world.At(point, nth, [&] { world.DrainWorker(2); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_THAT(world.metrics.Text(), ContainsRegex("shoal_train_dropped_attempts_total [01]\n"));
    EXPECT_THAT(world.disk.record, Not(HasSubstr("pushes of partition"))) << "a sum too many";
  }
}

TEST_P(LossTest, OneThatComesBackTakesPartAgain) {
  const auto& [point, nth] = GetParam();
  for (const bool draw : {false, true}) {
    SimWorld world({.steps = 8, .draw = draw});
    world.At(point, nth, [&] { world.KillWorker(1, absl::Milliseconds(3)); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_EQ(world.done()->step(), 8);
    EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 0"));
  }
}

// At layers they wait for each other: the attempt is dropped, and the others go on.
TEST_P(LossTest, ALostWorkerAtLayersCostsAnAttemptAtMost) {
  const auto& [point, nth] = GetParam();
  SimWorld world({.steps = 6, .layer = true});
  world.At(point, nth, [&] { world.KillWorker(2); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.servers.barrier_workers.size(), 2u);
}

// The other group does what its group had in hand. An attempt it may cost where the stage had
// reported, and the one before it was not done with what it had sent.
TEST_P(LossTest, ALostStageCostsAnAttemptAtMost) {
  const auto& [point, nth] = GetParam();
  for (const int stages : {2, 3}) {
    SimWorld world({.workers = 2 * stages, .stages = stages, .steps = 6});
    world.At(point, nth, [&] { world.KillWorker(1); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_EQ(world.done()->step(), 6);
    EXPECT_THAT(world.metrics.Text(), ContainsRegex("shoal_train_dropped_attempts_total [01]\n"));
  }
}

TEST(LossOfAStageTest, InAStepThePacksOfItsGroupAreDoneAgainAndNoneElse) {
  for (const int step : {1, 2, 5}) {
    for (const int groups : {2, 3}) {
      SimWorld world({.workers = 2 * groups, .stages = 2, .steps = 6});
      // When the first worker gets work of that step.
      world.At("work", (step - 1) * 2 * groups + 1, [&] { world.KillWorker(1); });
      ASSERT_THAT(world.RunAndCheck(), IsEmpty());
      ASSERT_TRUE(world.done().has_value()) << world.failure();
      const std::string metrics = world.metrics.Text();
      EXPECT_THAT(metrics, HasSubstr("shoal_train_dropped_attempts_total 0"));
      const auto plan = world.steps.Plan(step, {.groups = groups});
      EXPECT_THAT(metrics, HasSubstr(fmt::format("shoal_train_packs_taken_back_total {}\n",
                                                 plan->workers[0].size())));
      // Two stages of each other group run them as a further round, where they have a part.
      EXPECT_GT(world.works_given(), 2 * groups * (step - 1) + 2 * (groups - 1) * (7 - step) + 2);
    }
  }
}

TEST(LossOfAStageTest, AStageThatFailsWhileAllAreThereCostsTheAttempt) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {  // before and after its neighbours report
    SimWorld world({.seed = seed, .workers = 4, .stages = 2, .steps = 4});
    world.lie = simulation::Lie::kNeighbour;
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_EQ(world.done()->step(), 4);
    EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 1\n"));
  }
}

TEST_P(LossTest, AStageThatComesBackMakesItsGroupWhole) {
  const auto& [point, nth] = GetParam();
  for (const int groups : {1, 2}) {
    SimWorld world({.workers = 2 * groups, .stages = 2, .steps = 12, .stays = true});
    world.At(point, nth, [&] { world.KillWorker(1, absl::Milliseconds(3)); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_EQ(world.done()->step(), 12);
  }
}

// What is left of two groups is one.
TEST_P(LossTest, StagesOfDifferentGroupsMakeAnother) {
  const auto& [point, nth] = GetParam();
  SimWorld world({.workers = 4, .stages = 2, .steps = 6});
  world.At(point, nth, [&] {
    world.KillWorker(0);
    world.KillWorker(3);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), 6);
}

TEST(LossOfAllTest, TheJobWaitsForAStageAndSaysSo) {
  SimWorld world({.workers = 2, .stages = 2, .steps = 4});
  world.At("work", 3, [&] {
    world.KillWorker(1, absl::Minutes(5));
    world.loop.After(absl::Minutes(4), [&] {
      EXPECT_EQ(world.core().Status("")->state(), "waiting for 1 worker (a group has 2 stages)");
    });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), 4);
}

TEST(LossOfAllTest, TheJobWaitsForAWorkerAndSaysSo) {
  SimWorld world({.workers = 1, .steps = 4});
  world.At("work", 2, [&] {
    world.KillWorker(0, absl::Minutes(5));
    world.loop.After(absl::Minutes(4),
                     [&] { EXPECT_EQ(world.core().Status("")->state(), "waiting for 1 worker"); });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), 4);
}

TEST(LossOfAllTest, WithFewerWorkersThanItTakesTheJobWaitsAndSaysSo) {
  SimWorld world({.steps = 4, .min_workers = 3});
  world.At("work", 5, [&] {
    world.KillWorker(0, absl::Minutes(5));
    world.KillWorker(1, absl::Minutes(5));
    world.loop.After(absl::Minutes(4),
                     [&] { EXPECT_EQ(world.core().Status("")->state(), "waiting for 2 workers"); });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), 4);
}

TEST(LossOfAllTest, TheWaitForAWorkerHasAnEnd) {
  SimWorld world({.workers = 1, .steps = 4});
  world.At("work", 2, [&] { world.KillWorker(0); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_THAT(world.failure(), HasSubstr("still waiting for 1 worker after 1800 s"));
  EXPECT_THAT(world.failure(), HasSubstr("lost worker 0")) << "what it was that it had";
  EXPECT_TRUE(world.disk.complete.contains(1)) << "what was committed is saved";
}

// In every run a server goes before the first step is committed.
TEST(LossInARowTest, OneMoreThanMaxRestartsEndsTheJob) {
  for (const int losses : {2, 3}) {
    SimWorld world({.workers = 1, .steps = 2, .max_restarts = 2, .stays = true});
    int lost = 0;
    world.hook = [&](const std::string_view point, int) {
      if (point == "work" && lost < losses) {
        ++lost;
        world.KillServer(1, absl::Milliseconds(5));
      }
    };
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    EXPECT_EQ(lost, losses);
    EXPECT_EQ(world.done().has_value(), losses == 2) << world.failure();
    EXPECT_THAT(world.failure(), HasSubstr(losses == 2 ? "" : "lost server 1"));
  }
}

TEST(OtherKindTest, AWorkerOfAnotherKindIsWarnedOfOrRefused) {
  for (const bool exact : {false, true}) {
    for (const bool exact_devices : {false, true}) {
      SimWorld world({.steps = 300,  // long enough for it to come back
                      .checkpoint_every = 0,
                      .exact = exact,
                      .exact_devices = exact_devices,
                      .other_kind = 1,
                      .stays = true});
      world.hook = [&, works = 0](const std::string_view point, int) mutable {
        works += point == "work" ? 1 : 0;
        if (works == 4) {
          ++works;
          world.KillWorker(1, absl::Milliseconds(3));
        }
      };
      ASSERT_THAT(world.RunAndCheck(), IsEmpty());
      ASSERT_TRUE(world.done().has_value()) << world.failure();
      std::string warnings;
      for (const proto::JobEvent& event : world.events()) {
        warnings += event.warning();
      }
      const std::string kinds =
          "it computes on CPU baseline, the job's first workers on CPU x86-64-v4";
      const std::string name = "worker 1 (host sim, pid 201)";
      EXPECT_EQ(warnings, exact_devices ? name + " is refused: " + kinds + " (train.exact_devices)"
                          : exact       ? "bits may differ with " + name + ": " + kinds +
                                        "; train.exact_devices refuses such a worker"
                                  : "");
      EXPECT_EQ(world.disk.record.find("\"joined\"") != std::string::npos, !exact_devices);
    }
  }
}

// Also between being let go and its end: else the job takes it in again.
TEST(LeavingWorkerTest, IsLeavingForTheCoordinatorToo) {
  SimWorld world({.workers = 2, .steps = 6});
  int leaving = 0;
  world.At("committed", 2, [&] {
    proto::NextStepRequest next;
    next.set_job_id(world.job_id());
    next.set_incarnation(world.worker_incarnation(1));
    next.set_leaving(true);
    EXPECT_TRUE(world.core().Next(next).ok());
    const auto status = world.core().Status("");
    ASSERT_TRUE(status.ok());
    leaving = static_cast<int>(std::ranges::count_if(
        status->members(), [](const auto& member) { return member.leaving(); }));
  });
  world.RunAndCheck();
  EXPECT_EQ(leaving, 1);
}

// Where no other may have what it holds.
TEST_P(LossTest, AServerThatAsksToLeaveCostsNoStep) {
  const auto& [point, nth] = GetParam();
  SimWorld world({.steps = 6, .min_servers = 2});
  int asked = 0;
  bool left = false;
  std::function<void()> ask = [&] {
    if (world.server_incarnation(1) == 0) {  // the answer to its registration is on its way
      world.loop.After(absl::Milliseconds(1), ask);
      return;
    }
    proto::LeaveRequest leave;
    leave.set_incarnation(world.server_incarnation(1));
    leave.set_reason("SIGTERM");
    leave.set_when_free(true);
    const auto reply = world.core().Leave(leave);
    ASSERT_TRUE(reply.ok());
    ASSERT_LT(++asked, 1000);
    left = !reply->wait();
    if (!left) {
      const auto status = world.core().Status("");
      EXPECT_TRUE(status->members(1).leaving());
      EXPECT_FALSE(status->members(0).leaving());
      world.loop.After(absl::Milliseconds(10), ask);
    } else if (const int64_t version = world.servers.server(0).version(); version > 0) {
      EXPECT_TRUE(world.disk.complete.contains(version)) << "it was let go before the checkpoint";
    }
  };
  world.At(point, nth, [&] { world.loop.After(absl::ZeroDuration(), ask); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_TRUE(left);
  EXPECT_THAT(world.failure(), HasSubstr("server 1 (host sim, pid 101) is to leave: SIGTERM"));
  EXPECT_EQ(world.servers.server(1).version(), world.servers.server(0).version());
}

TEST(LossAtTheEndTest, AWorkerIsNotNeededForTheLastCheckpoint) {
  SimWorld world({.steps = 2, .checkpoint_every = 0});
  world.servers.checkpoint_time = absl::Seconds(30);
  world.At("pin", 1, [&] { world.KillWorker(2); });  // its lease ends while the disk is busy
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value());
  EXPECT_EQ(world.done()->checkpoint(), "step-2");
}

// The other server is asked whether it knows a successor, and does not answer.
TEST(LossWithoutAnswerTest, AFailedJobThatAsksForASuccessorTakesNothingFromWorkers) {
  SimWorld world({.steps = 6}, Faults::FromList(1, {{FaultKind::kBuggify, "takeover", 1, 0}}));
  world.servers.checkpoint_time = absl::Seconds(30);
  proto::NextStepRequest leaves;
  bool asked = false;
  world.hook = [&](std::string_view point, int) {
    if (point == "work" && leaves.incarnation() == 0) {
      proto::JoinJobRequest join;
      join.set_incarnation(world.worker_incarnation(2));
      const auto joined = world.core().Join(join);
      ASSERT_TRUE(joined.ok() && joined->has_value());
      leaves.set_job_id(world.job_id());
      leaves.set_run((*joined)->run());
      leaves.set_incarnation(join.incarnation());
      leaves.set_formation((*joined)->formation());
      leaves.set_leaving(true);
      world.KillServer(1);
    } else if (point == "takeover" && !std::exchange(asked, true)) {
      const auto reply = world.core().Next(leaves);
      EXPECT_TRUE(reply.ok() && !reply->has_value()) << "it is told when that is known";
    }
  };
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_TRUE(asked);
  EXPECT_THAT(world.failure(), HasSubstr("lost server 1"));
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_workers_lost_total 0\n"));
}

// Whatever becomes of the step whose prepare is under way, the job ends.
TEST(LossAtPrepareTest, ALossThenNumbersThatAreNotFiniteEndTheJobWithTheCommitBefore) {
  SimWorld world({.steps = 6, .checkpoint_every = 0, .min_servers = 2});
  world.servers.non_finite_at_step = 2;
  world.At("prepare", 3, [&] {  // of step 2, at the first server
    proto::LeaveRequest leave;
    leave.set_incarnation(world.server_incarnation(1));
    leave.set_when_free(true);
    ASSERT_TRUE(world.core().Leave(leave).ok());
  });
  ASSERT_TRUE(world.Run());
  EXPECT_THAT(world.failure(), HasSubstr("server 1 (host sim, pid 101) is to leave"));
  EXPECT_TRUE(world.disk.complete.contains(1));
}

TEST_P(LossTest, AStopEndsWithTheLastCommitSaved) {
  const auto& [point, nth] = GetParam();
  SimWorld world({.steps = 6});
  world.At(point, nth, [&] { world.loop.After(absl::ZeroDuration(), [&] { world.Stop(); }); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value());
  EXPECT_TRUE(world.done()->interrupted());
  EXPECT_LT(world.done()->step(), 6);
  EXPECT_EQ(world.done()->step(),
            world.servers.server(0).hosted() != nullptr ? world.servers.server(0).version() : 0);
  if (world.done()->step() > 0) {
    EXPECT_EQ(world.done()->checkpoint(), fmt::format("step-{}", world.done()->step()));
  }
}

TEST_P(LossTest, ALossIsResumedFromTheNewestCheckpoint) {
  const auto& [point, nth] = GetParam();
  FakeDisk disk;
  {
    SimWorld world({.steps = 6}, disk);
    world.At(point, nth, [&] { world.KillServer(0); });
    ASSERT_TRUE(world.Run());
    ASSERT_TRUE(world.failed().has_value());
  }
  const int64_t saved = disk.complete.empty() ? 0 : disk.complete.rbegin()->first;
  SimWorld again({.workers = 2, .steps = 6, .resume = true}, disk);
  ASSERT_THAT(again.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(again.done().has_value());
  EXPECT_EQ(again.done()->step(), 6);
  ASSERT_EQ(again.step_events().size(), static_cast<size_t>(6 - saved));
  EXPECT_EQ(again.step_events().front().step(), saved + 1);
}

std::string PointName(const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Loading, LossTest,
                         ::testing::Combine(::testing::Values("configure", "admit"),
                                            ::testing::Values(1, 2)),
                         PointName);
INSTANTIATE_TEST_SUITE_P(Training, LossTest,
                         ::testing::Combine(::testing::Values("begin", "work", "prepare", "commit",
                                                              "committed", "pin", "write", "plan"),
                                            ::testing::Values(1, 2, 4)),
                         PointName);

}  // namespace
}  // namespace shoal::server
