// The job's life under simulation, one situation at a time.
#include <cmath>
#include <limits>

#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace shoal::server {
namespace {

using simulation::Lie;
using simulation::SimOptions;
using simulation::SimWorld;
using ::testing::ElementsAre;
using testing::FakeDisk;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JobRunTest, RunsToTheEndWithAnyNumberOfServersAndWorkers) {
  for (const auto& [servers, workers] : {std::pair{1, 1}, {1, 4}, {2, 3}, {3, 2}, {4, 9}}) {
    // Five samples on nine workers: most have nothing to do, and report all the same.
    SimWorld world({.servers = servers, .workers = workers, .steps = 7, .samples = 5});
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value());
    EXPECT_EQ(world.done()->step(), 7);
    EXPECT_FALSE(world.done()->interrupted());
    EXPECT_EQ(world.step_events().size(), 7U);
    EXPECT_EQ(world.works_given(), 7 * workers);
    EXPECT_EQ(world.store->Load()->jobs.back().id, world.job_id());
    EXPECT_EQ(world.store->Load()->jobs.back().outcome, "done");
    EXPECT_EQ(world.store->Load()->jobs.back().last_commit->step, 7);
  }
}

// Also where all else in the message is right.
TEST(JobRunTest, MessagesForAnotherJobAreRefusedByName) {
  SimWorld world({.steps = 3, .draw = true});
  bool tried = false;
  world.At("work", 4, [&] {
    tried = true;
    CoordinatorCore& core = world.core();
    proto::JoinJobRequest join;
    join.set_incarnation(world.worker_incarnation(0));
    join.set_job_id("job-0");
    proto::NextStepRequest next;
    next.set_incarnation(world.worker_incarnation(0));
    next.set_job_id("job-0");
    proto::DrawMicrobatchRequest draw;
    draw.set_incarnation(world.worker_incarnation(0));
    draw.set_job_id("job-0");
    for (const absl::Status& refused :
         {core.Join(join).status(), core.Next(next).status(), core.Draw(draw).status(),
          core.Stop("job-0", "test"), core.Status("job-0").status(),
          core.Events("job-0").status()}) {
      EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
      EXPECT_EQ(Message(refused), "job-0 is not here; this coordinator has " + world.job_id());
    }
    join.set_job_id(world.job_id());
    EXPECT_EQ((*core.Join(join))->job_id(), world.job_id());
    EXPECT_EQ(core.Status("")->job_id(), world.job_id());
  });
  ASSERT_TRUE(world.Run());
  EXPECT_TRUE(tried);
  EXPECT_THAT(world.Violations(), IsEmpty());
  ASSERT_TRUE(world.done().has_value());
  EXPECT_EQ(world.done()->step(), 3);
  for (const proto::JobEvent& event : world.events()) {
    EXPECT_EQ(event.job_id(), world.job_id());
  }
}

TEST(JobRunTest, StepsArePlannedOverGroupsAndCountOncePerGroup) {
  for (const auto& [groups, stages] : {std::pair{1, 2}, {2, 2}, {3, 4}, {9, 3}}) {
    SimWorld world({.servers = 2, .workers = groups * stages, .stages = stages, .steps = 6});
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value());
    EXPECT_EQ(world.done()->step(), 6);
    EXPECT_EQ(world.works_given(), 6 * groups * stages);
    for (const proto::StepEvent& event : world.step_events()) {
      EXPECT_EQ(event.tokens(), world.steps.Plan(event.step(), {.groups = groups})->tokens);
    }
  }
}

TEST(JobRunTest, ALostStageIsNamedWithItsPlace) {
  SimWorld world({.stages = 3, .steps = 5});
  world.At("work", 4, [&] { world.KillWorker(1); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_THAT(world.failure(), HasSubstr("still waiting for 1 worker (a group has 3 stages)"));
  EXPECT_THAT(world.failure(),
              HasSubstr("lost worker 1 (host sim, pid 201), stage 1 of group 0 in step 2"));
}

TEST(JobRunTest, AStageWithoutAnAddressIsRefusedByName) {
  SimWorld world({.workers = 4, .stages = 2, .addresses = false});
  ASSERT_TRUE(world.Run());
  EXPECT_THAT(world.failure(),
              HasSubstr("worker 0 (host sim, pid 200), stage 0 of group 0 registered without an "
                        "address"));
}

TEST(JobRunTest, StagesThatOtherHostsDoNotReachAreRefusedByName) {
  SimWorld world({.workers = 4, .stages = 2, .hosts_and_loopback = true});
  ASSERT_TRUE(world.Run());
  EXPECT_THAT(world.failure(), HasSubstr("127.0.0.1:70"));
  EXPECT_THAT(world.failure(), HasSubstr("--advertise"));
}

TEST(JobRunTest, WorkersThatMayExchangeLearnOfEachOtherWhereTheyCanReachEachOther) {
  for (const bool addresses : {false, true}) {
    for (const bool hosts_and_loopback : {false, true}) {
      SimWorld world({.workers = 3,
                      .addresses = addresses,
                      .hosts_and_loopback = hosts_and_loopback,
                      .steps = 2,
                      .layer = true});
      ASSERT_THAT(world.RunAndCheck(), IsEmpty());
      EXPECT_TRUE(world.done().has_value());
    }
  }
}

TEST(JobRunTest, WorkersLearnWhatServersTakeOfTheirGpus) {
  for (const bool apart : {false, true}) {  // on a host with the worker of its number
    SimWorld world({.servers = 2, .workers = 3, .hosts_and_loopback = apart});
    world.servers.gpu_bytes = 1000;
    std::optional<proto::JoinJobReply> joined;
    world.At("work", 1, [&] {
      proto::JoinJobRequest request;
      request.set_incarnation(world.worker_incarnation(0));
      joined = *world.core().Join(request);
    });
    ASSERT_TRUE(world.Run());
    ASSERT_TRUE(joined.has_value() && joined->servers_size() == 2);
    for (const int server : {0, 1}) {
      const proto::ServerGpu& gpu = joined->servers(server).gpu();
      EXPECT_EQ(gpu.gpu(), "GPU-" + std::to_string(server));
      EXPECT_EQ(gpu.taken_bytes(), 1000);
      EXPECT_EQ(gpu.client_bytes(), 100);
      EXPECT_EQ(gpu.clients(), apart ? 1 : 3) << "on its host";
    }
  }
}

TEST(JobRunTest, AServerThatClaimsMoreThanAGpuHasEndsTheJobByName) {
  SimWorld world({});
  world.servers.gpu_bytes = int64_t{1} << 50;
  ASSERT_TRUE(world.Run());
  EXPECT_THAT(world.failure(), HasSubstr("server 0 (host sim, pid 100): a server cannot "));
}

TEST(JobRunTest, EveryStepIsToldWithItsNumbers) {
  SimWorld world({.servers = 2, .workers = 2, .steps = 3});
  ASSERT_TRUE(world.Run());
  for (const proto::StepEvent& event : world.step_events()) {
    const plan::StepPlan plan = *world.steps.Plan(event.step(), {.groups = 2});
    EXPECT_EQ(event.tokens(), plan.tokens);
    EXPECT_EQ(event.target_tokens(), plan.targets);
    EXPECT_EQ(event.learning_rate(), 1.0 / static_cast<double>(event.step()));
    EXPECT_EQ(event.grad_norm(),
              world.job().model().GradNorm(world.job().GradientOf(event.step())));
    EXPECT_EQ(event.total_steps(), 3);
    EXPECT_GT(event.step_seconds(), 0);
    const double flops = static_cast<double>(plan.tokens) * (2 + 10);  // samples of ten tokens
    EXPECT_DOUBLE_EQ(event.mfu(), flops / (2 * simulation::kPeakFlops * event.step_seconds()));
    EXPECT_DOUBLE_EQ(event.tokens_per_second(),
                     static_cast<double>(plan.tokens) / event.step_seconds());
  }
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_steps_total 3"));
}

TEST(JobRunTest, CheckpointsAppearAtTheirStepsAndAtTheEnd) {
  SimWorld world({.steps = 7, .checkpoint_every = 3});
  // Slower than three steps: the next one waits for it, training does not stop otherwise.
  world.servers.checkpoint_time = absl::Seconds(2);
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(world.disk.complete.size(), 3U);
  for (const int64_t step : {3, 6, 7}) {
    EXPECT_TRUE(world.disk.complete.contains(step)) << step;
  }
  EXPECT_EQ(world.done()->checkpoint(), "step-7");
}

TEST(JobRunTest, StopsEarlyWhereAskedAndThatCountsAsDone) {
  SimWorld world({.steps = 9, .stop_after = 4});
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(world.done()->step(), 4);
  EXPECT_FALSE(world.done()->interrupted());
}

TEST(JobRunTest, RepeatedReportsCountOnce) {
  SimWorld world({.steps = 10, .repeated_report = 1.0});
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(world.done()->step(), 10);
}

TEST(JobRunTest, ALostAnswerIsAskedForAgain) {
  SimWorld world({.steps = 10, .lost_reply = 0.5});
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(world.done()->step(), 10);
}

TEST(JobRunTest, AMiscountDropsTheAttemptAndTheStepIsDoneAgain) {
  SimWorld world({.steps = 3});
  world.servers.lost_pushes = 1;
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(world.done()->step(), 3);
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 1"));
}

TEST(JobRunTest, AMiscountThatStaysEndsTheJobByName) {
  SimWorld world({.steps = 3});
  world.servers.lost_pushes = 1000;
  ASSERT_TRUE(world.Run());
  EXPECT_THAT(world.failure(), HasSubstr("step 1 failed 3 times"));
  EXPECT_THAT(world.failure(), HasSubstr("server 0 took"));
  EXPECT_TRUE(world.step_events().empty());
}

TEST(JobRunTest, AReportThatContradictsThePlanDropsTheAttempt) {
  for (const Lie lie : {Lie::kTargets, Lie::kMicrobatches, Lie::kForeign}) {
    for (const int lies : {1, 1000}) {
      SimWorld world({.steps = 3});
      world.lie = lie;
      world.lies_left = lies;
      ASSERT_THAT(world.RunAndCheck(), IsEmpty());
      EXPECT_EQ(world.done().has_value(), lies == 1);
      if (lies > 1) {
        EXPECT_THAT(world.failure(), HasSubstr("step 2 failed 3 times"));
      }
    }
  }
}

TEST(JobRunTest, NonFiniteNumbersStopBeforeTheCommit) {
  for (const double loss :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 0.0}) {
    SimWorld world({.steps = 5});
    world.loss_of_step_2 = loss;
    world.servers.non_finite_at_step = loss == 0.0 ? 2 : 0;
    ASSERT_TRUE(world.Run());
    ASSERT_TRUE(world.failed().has_value());
    EXPECT_TRUE(world.failed()->non_finite());
    EXPECT_EQ(world.failed()->step(), 2);
    EXPECT_EQ(world.servers.server(0).version(), 1);
    EXPECT_TRUE(world.disk.complete.contains(1)) << "what was good is saved";
    EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_nonfinite_steps_total 1"));
  }
}

TEST(JobRunTest, DrawnMicrobatchesAreRunOnceEach) {
  for (const int workers : {1, 2, 5, 9}) {
    SimWorld world({.workers = workers,
                    .steps = 8,
                    .samples = 12,
                    .draw = true,
                    .lost_reply = 0.1,
                    .repeated_report = 0.3,
                    .slow_worker = 0.2});
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value());
    EXPECT_EQ(world.done()->step(), 8);
    EXPECT_GT(world.drawn(), 8);
  }
}

TEST(JobRunTest, WhoReportsBeforeAllIsDrawnGetsTheRest) {
  SimWorld world({.steps = 3, .samples = 12, .draw = true, .early_report = 0.5});
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(world.done()->step(), 3);
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 0"));
}

TEST(JobRunTest, DrawsOfAnotherAttemptAreRefusedByName) {
  SimWorld world({.workers = 1, .steps = 2, .samples = 12, .draw = true});
  int refused = 0;
  world.At("work", 2, [&] {
    proto::DrawMicrobatchRequest request;
    request.set_job_id(world.job_id());
    EXPECT_TRUE(absl::IsNotFound(world.core().Draw(request).status())) << "no member";
    request.set_incarnation(world.worker_incarnation(0));
    for (const auto& [step, attempt, number, code] :
         {std::tuple{1, 1, 1, absl::StatusCode::kAborted},
          {2, 2, 1, absl::StatusCode::kAborted},
          {2, 1, 0, absl::StatusCode::kInvalidArgument},
          {2, 1, 5, absl::StatusCode::kInvalidArgument}}) {
      request.set_step(step);
      request.set_attempt(attempt);
      request.set_number(number);
      const absl::Status status = world.core().Draw(request).status();
      EXPECT_EQ(status.code(), code) << Describe(status);
      EXPECT_THAT(std::string(Message(status)), HasSubstr("worker 0"));
      ++refused;
    }
  });
  ASSERT_TRUE(world.Run());
  EXPECT_EQ(refused, 4);
  EXPECT_THAT(world.Violations(), IsEmpty());
}

TEST(JobRunTest, WorkersMeetAtLayersOnlyWhereAskedTo) {
  for (const bool layer : {false, true}) {
    SimWorld world({.workers = 3, .steps = 2, .layer = layer});
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    EXPECT_EQ(world.servers.barrier_workers.size(), layer ? 3U : 0U);
  }
}

TEST(JobRunTest, TellsWhereTheTimeWent) {
  SimWorld world({.workers = 3, .steps = 4, .samples = 30, .trace = true});
  bool looked = false;
  world.At("pin", 1, [&] {  // of the checkpoint of step 2
    const proto::GetStatusReply status = *world.core().Status("");
    EXPECT_EQ(status.mfu(), world.step_events().back().mfu());
    EXPECT_GT(status.mfu(), 0);
    for (const proto::MemberStatus& member : status.members()) {
      ASSERT_EQ(member.has_last_step(), member.role() == proto::ROLE_WORKER);
      if (member.has_last_step()) {
        const proto::LastStep& last = member.last_step();
        EXPECT_EQ(last.step(), 2);
        EXPECT_GT(last.compute(), 0);
        EXPECT_NEAR(last.compute() + last.step_wait(), 1, 1e-9);
        looked = true;
      }
    }
  });
  ASSERT_TRUE(world.Run());
  EXPECT_TRUE(looked);
  for (const proto::StepEvent& event : world.step_events()) {
    EXPECT_GT(event.idle_share(), 0);
    EXPECT_LT(event.idle_share(), 1);
    EXPECT_GT(event.predicted_idle_share(), 0);
    EXPECT_LT(event.predicted_idle_share(), 1);
  }
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_idle_ratio 0."));
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_predicted_idle_ratio 0."));
  int traces = 0;
  for (const proto::JobEvent& event : world.events()) {
    traces += event.has_trace() ? 1 : 0;
    EXPECT_TRUE(!event.has_trace() || event.trace().spans_size() > 0);
  }
  EXPECT_GE(traces, 4);
}

TEST(JobRunTest, MembersThatDoNotComeAreNamed) {
  SimWorld world({.servers = 2, .workers = 2});
  world.KillServer(1);
  world.KillWorker(0);
  ASSERT_TRUE(world.Run());
  EXPECT_THAT(world.failure(), HasSubstr("still waiting for 1 server and 1 worker after 60 s"));
}

TEST(JobRunTest, TheLastCheckpointIsNotTriedAgainAtOnce) {
  SimWorld world({.checkpoint_every = 0});
  world.disk.next_finish = ResourceExhausted("manifest.json: no space left on device");
  world.loop.After(absl::Seconds(15), [&world] { world.disk.next_finish = absl::OkStatus(); });
  ASSERT_TRUE(world.Run());
  EXPECT_EQ(world.disk.discarded, 2);
  EXPECT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_THAT(world.Violations(), IsEmpty());
}

TEST(JobRunTest, ADiskThatStaysFullEndsTheJobByName) {
  SimWorld world({.steps = 60});
  world.disk.next_finish = ResourceExhausted("manifest.json: no space left on device");
  ASSERT_TRUE(world.Run());
  EXPECT_THAT(world.failure(), HasSubstr("failed: manifest.json: no space"));
  EXPECT_THAT(world.failure(), HasSubstr("for the 3rd time in a row"));
  EXPECT_EQ(world.disk.discarded, 3);
  EXPECT_THAT(world.Violations(), IsEmpty());
}

TEST(JobRunTest, ADiskThatIsFullForAWhileCostsNothing) {
  for (const int failures : {1, 2}) {
    SimWorld world({.steps = 6});
    world.disk.next_finish = ResourceExhausted("manifest.json: no space left on device");
    world.disk.failures_left = failures;
    ASSERT_TRUE(world.Run());
    ASSERT_TRUE(world.done().has_value());
    EXPECT_EQ(world.done()->step(), 6);
    EXPECT_TRUE(world.disk.complete.contains(6));
    EXPECT_EQ(world.disk.discarded, failures);
    EXPECT_THAT(world.Violations(), IsEmpty());
  }
}

TEST(JobRunTest, ASlowDiskIsNoLostServer) {
  SimWorld world({.steps = 6, .checkpoint_every = 4});
  world.servers.checkpoint_time = absl::Minutes(7);
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value());
  EXPECT_EQ(world.done()->step(), 6);
}

std::vector<Json> RecordOf(const FakeDisk& disk) {
  std::vector<Json> lines;
  for (const absl::string_view line : absl::StrSplit(disk.record, '\n', absl::SkipEmpty())) {
    lines.push_back(Json::parse(std::string(line)));
  }
  return lines;
}

TEST(JobRunTest, LeavesARecordOverResumes) {
  FakeDisk disk;
  {
    SimWorld world({.stages = 3, .steps = 6, .checkpoint_every = 2}, disk);
    world.At("work", 3 * 4, [&] { world.KillWorker(0); });
    ASSERT_TRUE(world.Run());
    ASSERT_TRUE(world.failed().has_value());
  }
  {
    SimWorld again({.steps = 6, .resume = true}, disk);
    ASSERT_TRUE(again.Run());
  }
  std::vector<std::string> events;
  std::vector<int64_t> steps;
  for (const Json& line : RecordOf(disk)) {
    events.push_back(line["event"]);
    EXPECT_TRUE(line["time"].is_number());
    if (line["event"] == "step") {
      steps.push_back(line["step"]);
      double sum = 0;
      for (const auto& [name, share] : line["time_shares"].items()) {
        sum += share.get<double>();
      }
      EXPECT_NEAR(sum, 1, 1e-9);
    }
  }
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 2, 3, 4, 5, 6)) << disk.record;
  EXPECT_EQ(events.front(), "start");
  const Json members = RecordOf(disk).front()["members"];
  for (const Json& member : members) {
    EXPECT_EQ(member["cpu"], "simulated");
    EXPECT_FALSE(member.contains("gpus")) << "known of none";
  }
  EXPECT_EQ(events.back(), "done");
  EXPECT_THAT(events, ::testing::IsSupersetOf({"lost", "failed", "resume", "checkpoint"}));
}

TEST(JobRunTest, ARunWithoutAStepLeavesTheEarlierRecord) {
  SimWorld world({.servers = 2});
  world.KillServer(1);
  ASSERT_TRUE(world.Run());
  EXPECT_EQ(world.disk.record, "");
}

TEST(JobRunTest, ARunWhoseFolderIsTakenEndsByName) {
  SimWorld world({.steps = 6, .checkpoint_every = 2});
  world.At("commit", 1, [&] { ++world.disk.term; });
  ASSERT_TRUE(world.Run());
  EXPECT_THAT(world.failure(), HasSubstr("another run has taken the folder"));
  EXPECT_TRUE(world.disk.complete.empty());
  EXPECT_THAT(world.Violations(), IsEmpty());
}

TEST(JobRunTest, AFailedCheckpointIsOverOnceEveryServerHasAnswered) {
  SimWorld world({.steps = 8, .checkpoint_every = 1});
  world.servers.refused_shards = 2;  // of both servers, one later than the other
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value());
  EXPECT_EQ(world.disk.discarded, 1);
}

TEST(JobRunTest, CheckpointsGoByTimeToo) {
  SimWorld world({.steps = 40, .checkpoint_every = 0, .checkpoint_seconds = 0.2});
  ASSERT_TRUE(world.Run());
  EXPECT_GT(world.disk.complete.size(), 2u);
  EXPECT_LT(world.disk.complete.size(), 40u);
  EXPECT_THAT(world.Violations(), IsEmpty());
}

TEST(JobRunTest, AResumeAfterTheEndIsDoneAtOnce) {
  FakeDisk disk;
  {
    SimWorld world({.steps = 3}, disk);
    ASSERT_TRUE(world.Run());
  }
  SimWorld again({.steps = 3, .resume = true}, disk);
  ASSERT_THAT(again.RunAndCheck(), IsEmpty());
  EXPECT_EQ(again.done()->step(), 3);
  EXPECT_TRUE(again.step_events().empty());
  EXPECT_GT(again.done()->loss(), 0);
}

}  // namespace
}  // namespace shoal::server
