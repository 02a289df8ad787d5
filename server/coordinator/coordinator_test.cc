// The coordinator with its threads and real gRPC.
#include "server/coordinator/coordinator.h"

#include <set>
#include <thread>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/rpc/health.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/testing/fake_job.h"
#include "server/coordinator/testing/loopback_cluster.h"

namespace shoal::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RunLoopback;

// For coordinators without a running job.
const ServerClientFactory kNoServers;

// They never answer.
class SilentServers final : public ServerClient {
  void Start(int /*server*/, const Message& /*request*/, Message& /*reply*/,
             std::function<absl::Status(rpc::ParameterServerService&)> /*here*/,
             std::function<void(const absl::Status&)> /*done*/) override {}
};

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
    ASSERT_TRUE(store->BeginJob("job-1", "request").ok());
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

// As another version may have written it.
TEST(CoordinatorTest, AJobThatIsOverAndCannotBeReadIsForgotten) {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  {
    auto store = *OpenSqliteStateStore(path);
    ASSERT_TRUE(store->BeginJob("job-1", "unreadable").ok());
    ASSERT_TRUE(store->EndJob("job-1", "done").ok());
  }
  Metrics metrics;
  auto coordinator = Coordinator::Create({.version = "1", .stay = true}, JobLoader(), kNoServers,
                                         *OpenSqliteStateStore(path), RealClock(), metrics);
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  EXPECT_TRUE((*coordinator)->ListJobs({})->jobs().empty());
}

// A coordinator that stays, whose jobs wait for workers that never come.
class QueueTest : public ::testing::Test {
 protected:
  QueueTest() {
    auto created = Coordinator::Create(
        {.version = "1", .stay = true},
        [this](const proto::SubmitJobRequest& request, int64_t) -> absl::StatusOr<LoadedJob> {
          LoadedJob job = testing::MakeFakeJob({.servers = 1, .workers = 1}, disk_);
          job.job.checkpoint.directory = request.token_file();
          job.request = request;
          job.job.cluster.servers = request.job().cluster().servers();
          job.job.service.encryption = encryption_;
          job.job.train.exact_devices = exact_devices_;
          job.job.lora = {.rank = 4, .dropout = dropout_};
          job.job.cluster.workers = workers_;
          job.server_bytes = server_bytes_;
          return job;
        },
        [](const std::vector<Member>&) { return std::make_shared<SilentServers>(); },
        OpenSqliteStateStore(folder_ / "state").value(), RealClock(), metrics_);
    coordinator_ = std::move(created).value();
    proto::RegisterRequest server;
    server.set_role(proto::ROLE_SERVER);
    server.set_version("1");
    server.set_address("127.0.0.1:1");
    server.set_stays(true);
    server.set_host("here");
    server.set_free_memory_bytes(1 << 20);
    server_ = coordinator_->Register(server)->incarnation();
  }

  absl::StatusOr<proto::SubmitJobReply> Submit(const std::string& directory, bool waits = false) {
    proto::SubmitJobRequest request;
    request.set_token_file(directory);
    request.set_wait_for_servers(waits);
    return coordinator_->SubmitJob(request);
  }
  std::vector<std::string> States() {
    std::vector<std::string> states;
    const proto::ListJobsReply jobs = coordinator_->ListJobs({}).value();
    for (const proto::JobSummary& job : jobs.jobs()) {
      states.push_back(job.state());
    }
    return states;
  }

  void ComeWorker(const std::string& instructions, const std::string& gpu = "") {
    proto::RegisterRequest worker;
    worker.set_role(proto::ROLE_WORKER);
    worker.set_version("1");
    worker.set_stays(true);
    worker.mutable_facts()->set_instructions(instructions);
    worker.mutable_facts()->set_gpu(gpu);
    EXPECT_TRUE(coordinator_->Register(worker).ok());
  }

  const TemporaryFolder folder_;
  testing::FakeDisk disk_;
  Metrics metrics_;
  ServerBytes server_bytes_;
  plan::Encryption encryption_ = plan::Encryption::kAuto;
  bool exact_devices_ = false;
  double dropout_ = 0;
  int64_t workers_ = 1;
  uint64_t server_ = 0;  // incarnation of the only one
  std::unique_ptr<Coordinator> coordinator_;
};

// Keys of tensors would travel in the calls of a coordinator without TLS.
TEST_F(QueueTest, EncryptionWithoutTlsIsRefused) {
  encryption_ = plan::Encryption::kOn;
  EXPECT_REFUSED(Submit("a").status(), "service.encryption is on and control has no TLS");
  encryption_ = plan::Encryption::kOff;
  EXPECT_TRUE(Submit("a").ok());
}

TEST_F(QueueTest, WhatDoesNotFitIsRefusedOrWaitsForEnoughServers) {
  server_bytes_ = [](int servers) {
    return std::vector<int64_t>(static_cast<size_t>(servers), (3 << 20) / servers);
  };
  const absl::Status refused = Submit("a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(refused),
            "with 1 server the job needs 3.0 MiB of memory of the one on here, where 1.0 MiB are "
            "free: 3 servers with as much would do: start more, or let it wait with "
            "--wait-for-servers");
  ASSERT_TRUE(Submit("a", /*waits=*/true).ok());
  EXPECT_THAT(States(), ElementsAre("waiting for 2 servers and 1 worker"));
}

TEST_F(QueueTest, AServerThatNoJobHasLeavesAtOnce) {
  ASSERT_TRUE(Submit("a").ok());
  EXPECT_THAT(States(), ElementsAre("waiting for 1 worker"));
  proto::LeaveRequest leave;
  leave.set_incarnation(server_);
  leave.set_when_free(true);
  for (int again = 0; again < 2; ++again) {
    const auto reply = coordinator_->Leave(leave);
    ASSERT_TRUE(reply.ok());
    EXPECT_FALSE(reply->wait());
  }
  EXPECT_THAT(States(), ElementsAre("waiting for 1 server and 1 worker"));
}

TEST_F(QueueTest, JobsWaitInOrder) {
  const std::string first = Submit("a")->job_id();
  const auto second = Submit("b");
  EXPECT_EQ(second->jobs_ahead(), 1);
  EXPECT_EQ(Submit("c")->jobs_ahead(), 2);
  EXPECT_THAT(States(), ElementsAre("waiting for 1 worker", "waiting for 1 job ahead",
                                    "waiting for 2 jobs ahead"));
  proto::StopJobRequest stop;
  stop.set_job_id(first);
  ASSERT_TRUE(coordinator_->StopJob(stop).ok());
  EXPECT_THAT(States(),
              ElementsAre("interrupted", "waiting for 1 worker", "waiting for 1 job ahead"));
}

TEST_F(QueueTest, WhoTakesOverWaitsOnlyForWhoIsThere) {
  proto::RegisterRequest request;
  request.set_role(proto::ROLE_SERVER);
  request.set_version("1");
  request.set_index(0);
  request.set_nonce(7);
  auto listener = rpc::Health::Serve(0, "127.0.0.1:9").value();
  request.set_address(fmt::format("127.0.0.1:{}", listener->port()));
  EXPECT_TRUE(absl::IsFailedPrecondition(coordinator_->Register(request).status()));
  request.set_takes_over(true);
  const auto taken = coordinator_->Register(request);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->index(), 0);

  request.set_nonce(9);
  const absl::Status waits = coordinator_->Register(request).status();
  EXPECT_TRUE(absl::IsUnavailable(waits)) << waits;
  EXPECT_THAT(std::string(Message(waits)), HasSubstr("is there still"));
  listener.reset();
  EXPECT_TRUE(coordinator_->Register(request).ok()) << "its port refuses";
}

TEST_F(QueueTest, OneFolderIsOneJobs) {
  ASSERT_TRUE(Submit("a").ok());
  const absl::Status refused = Submit("a").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(Message(refused)), HasSubstr("checkpoint.directory a"));
}

TEST_F(QueueTest, IsBounded) {
  for (int job = 0; job < CoordinatorCore::kMaxWaiting; ++job) {
    ASSERT_TRUE(Submit(std::to_string(job)).ok());
  }
  const absl::Status full = Submit("more").status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(full), "100 jobs wait already: stop one, or try again later");
  EXPECT_EQ(States().size(), static_cast<size_t>(CoordinatorCore::kMaxWaiting)) << "none is lost";
  coordinator_->Interrupt("the end of all at once");
  coordinator_->WaitUntilDone();
}

// Without another submit.
TEST_F(QueueTest, WhatIsOverIsForgottenInTime) {
  const absl::Time patience = absl::Now() + absl::Seconds(20);
  for (int jobs = 0; jobs < 30 && absl::Now() < patience;) {
    const auto submitted = Submit("a");
    if (!submitted.ok()) {  // too many at once
      EXPECT_TRUE(absl::IsUnavailable(submitted.status())) << submitted.status();
      continue;
    }
    proto::StopJobRequest stop;
    stop.set_job_id(submitted->job_id());
    ASSERT_TRUE(coordinator_->StopJob(stop).ok());
    ++jobs;
  }
  const auto remembered = static_cast<size_t>(CoordinatorCore::kRemembered);
  while (States().size() > remembered && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(States().size(), remembered);
}

TEST_F(QueueTest, WithExactDevicesItWaitsForWorkersOfOneKind) {
  exact_devices_ = true;
  workers_ = 2;
  ComeWorker("baseline");
  ASSERT_TRUE(Submit("a").ok());
  EXPECT_THAT(States(), ElementsAre("waiting for 1 worker"));
  ComeWorker("x86-64-v4");
  EXPECT_THAT(States(), ElementsAre("waiting for 1 worker like the others (train.exact_devices)"));
}

TEST_F(QueueTest, AJobThatItsWorkersCannotRunFailsByName) {
  dropout_ = 0.1;
  ComeWorker("x86-64-v4", "H200");
  ASSERT_TRUE(Submit("a").ok());
  EXPECT_THAT(States(), ElementsAre("failed"));
}

TEST_F(QueueTest, WithExactDevicesOpenCountsAreOfOneKind) {
  exact_devices_ = true;
  workers_ = 0;
  server_bytes_ = [](int servers) {
    return std::vector<int64_t>(static_cast<size_t>(servers), (2 << 20) / servers);
  };
  for (const char* kind : {"baseline", "x86-64-v4", "x86-64-v4"}) {
    ComeWorker(kind);
  }
  ASSERT_TRUE(Submit("a", /*waits=*/true).ok());
  EXPECT_THAT(States(), ElementsAre("waiting for 1 server")) << "and for no third worker";
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
              HasSubstr("shoal_coordinator_members_lost_total{role=\"worker\"} 1"));
}

TEST_F(IdleCoordinatorTest, StopEndsAllWaiting) {
  proto::JoinJobRequest join;
  join.set_incarnation(Register());
  join.set_wait_seconds(30);
  absl::Status waited;
  std::thread worker([&] { waited = coordinator_->JoinJob(join).status(); });
  std::thread main([&] { coordinator_->WaitUntilDone(); });
  coordinator_->Stop();
  worker.join();
  main.join();
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(coordinator_->GetStatus({}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(IdleCoordinatorTest, AnInterruptWithoutAJobEndsIt) {
  coordinator_->Interrupt("SIGTERM");
  coordinator_->WaitUntilDone();
  EXPECT_FALSE(coordinator_->SubmitJob({}).ok());
}

}  // namespace
}  // namespace shoal::server
