// The coordinator with its threads and real gRPC.
#include "server/coordinator/coordinator.h"

#include <set>
#include <thread>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/testing/loopback_cluster.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;
using testing::RunLoopback;

// For coordinators without a running job.
const ServerClientFactory kNoServers;

TEST(LoopbackTest, RunsAJobToItsEnd) {
  for (const auto& [servers, workers] : {std::pair{1, 1}, {2, 4}, {3, 2}}) {
    const auto result = RunLoopback({.servers = servers, .workers = workers, .steps = 20});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->worker_errors, 0);
    int64_t steps = 0;
    for (size_t i = 0; i < result->events.size(); ++i) {
      EXPECT_EQ(result->events[i].number(), static_cast<int64_t>(i + 1));
      EXPECT_EQ(result->events[i].job_id(), result->events[0].job_id());
      if (result->events[i].has_step()) {
        EXPECT_EQ(result->events[i].step().step(), ++steps);
      }
    }
    EXPECT_EQ(steps, 20);
    ASSERT_TRUE(result->events.back().has_done());
    EXPECT_EQ(result->events.back().done().step(), 20);
    EXPECT_THAT(result->metrics, HasSubstr("shoal_train_steps_total 20"));
    EXPECT_THAT(result->metrics, HasSubstr("shoal_coordinator_late_reports_total 0"));
  }
}

TEST(LoopbackTest, StopsInTheMiddle) {
  const auto result = RunLoopback({.steps = 100000, .stop_after = 5});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->worker_errors, 0);
  ASSERT_TRUE(result->events.back().has_done());
  EXPECT_TRUE(result->events.back().done().interrupted());
  EXPECT_GE(result->events.back().done().step(), 5);
  EXPECT_LT(result->events.back().done().step(), 100000);
}

TEST(CoordinatorTest, ALaterLifeGivesNoIncarnationTwice) {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  std::set<uint64_t> low_bits;  // the counted part: random parts alone hardly ever repeat
  for (int life = 0; life < 3; ++life) {
    Metrics metrics;
    auto store = OpenSqliteStateStore(path);
    ASSERT_TRUE(store.ok()) << store.status();
    auto coordinator = Coordinator::Create(
        {.version = "1"},
        [](const proto::SubmitJobRequest&, int64_t) -> absl::StatusOr<LoadedJob> {
          return Unimplemented("no jobs");
        },
        kNoServers, *std::move(store), RealClock(), metrics);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    for (int member = 0; member < 3; ++member) {
      proto::RegisterRequest request;
      request.set_role(proto::ROLE_WORKER);
      request.set_version("1");
      EXPECT_TRUE(
          low_bits.insert((*coordinator)->Register(request)->incarnation() & 0xFFFFFF).second);
    }
  }
}

TEST(CoordinatorTest, AJobOfAnEarlierLifeEndsWithIt) {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  {
    auto store = *OpenSqliteStateStore(path);
    ASSERT_TRUE(store->BeginJob("job-1", "model: 'x'\n", "tokens.bin").ok());
  }
  {
    Metrics metrics;
    auto coordinator = Coordinator::Create({.version = "1"}, JobLoader(), kNoServers,
                                           *OpenSqliteStateStore(path), RealClock(), metrics);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    proto::StopJobRequest stop;
    stop.set_job_id("job-1");
    EXPECT_EQ((*coordinator)->StopJob(stop).status().code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ((*OpenSqliteStateStore(path))->Load()->jobs.at(0).outcome,
            "the coordinator ended before it");
}

// Without a job: what callers get, and that no call blocks longer than asked.
class IdleCoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = Coordinator::Create(
        {.version = "1", .lease = absl::Milliseconds(200)},
        [](const proto::SubmitJobRequest&, int64_t) -> absl::StatusOr<LoadedJob> {
          return InvalidArgument("job.yaml:1: no model");
        },
        kNoServers, MakeMemoryStateStore(), RealClock(), metrics_);
    ASSERT_TRUE(created.ok()) << created.status();
    coordinator_ = std::move(*created);
  }

  uint64_t Register() {
    proto::RegisterRequest request;
    request.set_role(proto::ROLE_WORKER);
    request.set_version("1");
    return coordinator_->Register(request)->incarnation();
  }

  Metrics metrics_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(IdleCoordinatorTest, AnswersWithoutAJob) {
  EXPECT_EQ(coordinator_->SubmitJob({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(coordinator_->StopJob({}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(coordinator_->GetStatus({})->state(), "no job yet");
  proto::NextStepRequest next;
  next.set_incarnation(Register());
  next.set_wait_seconds(0.01);
  next.set_job_id("job-7");
  const absl::Status refused = coordinator_->NextStep(next).status();
  EXPECT_TRUE(absl::IsNotFound(refused));
  EXPECT_EQ(Message(refused), "job-7 is not here; this coordinator has none");
  proto::JoinJobRequest join;
  join.set_incarnation(next.incarnation());
  EXPECT_FALSE(coordinator_->JoinJob(join)->ready());
  join.set_incarnation(12345);
  EXPECT_EQ(coordinator_->JoinJob(join).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(IdleCoordinatorTest, ASilentMemberIsForgotten) {
  proto::RenewLeaseRequest renew;
  renew.set_incarnation(Register());
  EXPECT_EQ(coordinator_->GetStatus({})->members_size(), 1);
  const absl::Time patience = absl::Now() + absl::Seconds(20);
  while (coordinator_->GetStatus({})->members_size() > 0 && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(coordinator_->RenewLease(renew).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("shoal_coordinator_lease_expiries_total{role=\"worker\"} 1"));
}

TEST_F(IdleCoordinatorTest, StopEndsAllWaiting) {
  proto::JoinJobRequest join;
  join.set_incarnation(Register());
  join.set_wait_seconds(30);
  absl::Status waited;
  std::thread worker([&] { waited = coordinator_->JoinJob(join).status(); });
  std::thread main([&] { coordinator_->WaitUntilDone(false); });
  coordinator_->Stop();
  worker.join();
  main.join();
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(coordinator_->GetStatus({}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(IdleCoordinatorTest, AnInterruptWithoutAJobEndsIt) {
  coordinator_->Interrupt("SIGTERM");
  coordinator_->WaitUntilDone(false);
  EXPECT_FALSE(coordinator_->SubmitJob({}).ok());
}

}  // namespace
}  // namespace shoal::server
