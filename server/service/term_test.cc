// Lives of the coordinator at a server: what a later one asks, what an earlier one is refused.
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

class TermTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
};

TEST_F(TermTest, CommandsOfAnEarlierTermAreRefusedByName) {
  TestingCluster cluster(folder_ / "model", 1, plan::Accumulate::kFloat);
  ParameterService& service = cluster.service(0);
  const auto configure = [&](int64_t term) {
    proto::ConfigureRequest request = cluster.ConfigureRequest(0);
    request.set_term(term);
    return service.Configure(request).status();
  };
  const auto all_but_configure = [&](int64_t term) {
    const auto of = [&](auto request) {
      request.set_term(term);
      return request;
    };
    return std::vector<absl::Status>{
        service.BeginAttempt(of(OfTestingJob<proto::BeginAttemptRequest>())).status(),
        service.Prepare(of(OfTestingJob<proto::PrepareRequest>())).status(),
        service.Commit(of(OfTestingJob<proto::CommitRequest>())).status(),
        service.WriteCheckpoint(of(OfTestingJob<proto::WriteCheckpointRequest>())).status(),
        service.AdmitClients(of(OfTestingJob<proto::AdmitClientsRequest>())).status(),
        service.FenceClient(of(proto::FenceClientRequest())).status(),
        service.ReleaseJob(of(OfTestingJob<proto::ReleaseJobRequest>())).status()};
  };
  ASSERT_OK(configure(3));
  ASSERT_OK(configure(4));  // a later life's repetition
  for (int i = 0; i < 2; ++i) {
    std::vector<absl::Status> refused = all_but_configure(3);
    refused.push_back(configure(3));
    for (const absl::Status& status : refused) {
      EXPECT_TRUE(absl::IsAborted(status)) << status;
      EXPECT_THAT(Describe(status), HasSubstr("is of term 3 of the coordinator, and term 4 has"));
    }
  }
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_rpc_refused_total{reason=\"fenced\"} 16"));
  ASSERT_OK(cluster.service(0).GetChecksums(OfTestingJob<proto::GetChecksumsRequest>()).status());
  service.ReleaseAll();
  ASSERT_OK(configure(1));  // of another coordinator
}

// What a later life is told in every phase of a step.
TEST_F(TermTest, ALaterLifeIsToldWhereTheJobIs) {
  TestingCluster cluster(folder_ / "model", 1, plan::Accumulate::kFloat);
  ParameterService& service = cluster.service(0);
  int64_t term = 0;
  const auto take_over = [&] {
    auto request = OfTestingJob<proto::TakeOverRequest>();
    request.set_term(++term);
    return service.TakeOver(request).value();
  };
  EXPECT_FALSE(take_over().holds());
  auto configure = cluster.ConfigureRequest(0);
  configure.set_term(term);
  ASSERT_OK(service.Configure(configure).status());
  proto::TakeOverReply at = take_over();
  EXPECT_TRUE(at.holds());
  EXPECT_EQ(at.version(), 0);
  EXPECT_EQ(at.generation(), cluster.shard_map().generation);
  EXPECT_EQ(at.step(), 0);
  EXPECT_EQ(at.phase(), proto::ATTEMPT_PHASE_NONE);
  EXPECT_EQ(at.committed().step(), 0);

  const auto of = [&](auto request) {
    request.set_term(term);
    request.set_step(1);
    request.set_attempt(2);
    return request;
  };
  auto begin = of(OfTestingJob<proto::BeginAttemptRequest>());
  begin.set_generation(cluster.shard_map().generation);
  ASSERT_OK(service.BeginAttempt(begin).status());
  at = take_over();
  EXPECT_EQ(at.step(), 1);
  EXPECT_EQ(at.attempt(), 2);
  EXPECT_EQ(at.phase(), proto::ATTEMPT_PHASE_OPEN);

  const proto::PrepareReply sealed =
      service.Prepare(of(OfTestingJob<proto::PrepareRequest>())).value();
  EXPECT_EQ(take_over().phase(), proto::ATTEMPT_PHASE_SEALED);

  auto commit = of(OfTestingJob<proto::CommitRequest>());
  commit.set_learning_rate(0.5);
  commit.set_clip_coefficient(1);
  commit.set_loss(3);
  ASSERT_OK(service.Commit(commit).status());
  for (int life = 0; life < 2; ++life) {
    at = take_over();
    EXPECT_EQ(at.version(), 1);
    EXPECT_EQ(at.phase(), proto::ATTEMPT_PHASE_NONE);
    EXPECT_EQ(at.committed().step(), 1);
    EXPECT_EQ(at.committed().attempt(), 2);
    EXPECT_EQ(at.committed().learning_rate(), 0.5);
    EXPECT_EQ(at.committed().loss(), 3);
    commit.set_term(term);
    EXPECT_EQ(service.Commit(commit)->version(), 1) << "a later life repeats it";
  }
  EXPECT_EQ(at.configured().version(), 0);
  EXPECT_GT(sealed.partitions_size(), 0);
}

TEST_F(TermTest, ALaterRunOfAJobBeginsAnew) {
  TestingCluster cluster(folder_ / "model", 1, plan::Accumulate::kFloat);
  ParameterService& service = cluster.service(0);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  ASSERT_OK(cluster.Prepare(1, 1).status());
  ASSERT_OK(cluster.Commit(1, 1));
  proto::TakeOverRequest where = OfTestingJob<proto::TakeOverRequest>();
  EXPECT_EQ(service.TakeOver(where)->version(), 1);
  where.set_run(1);
  EXPECT_FALSE(service.TakeOver(where)->holds());
  proto::ConfigureRequest again = cluster.ConfigureRequest(0);
  again.set_run(1);
  const auto configured = service.Configure(again);
  ASSERT_OK(configured.status());
  EXPECT_EQ(configured->version(), 0);
  EXPECT_TRUE(service.TakeOver(where)->holds());
  EXPECT_TRUE(absl::IsAlreadyExists(service.Configure(cluster.ConfigureRequest(0)).status()));
}

// A call may come when its run is over, to a server that has had later ones, has none, or has
// begun at the address of the one that it was for.
TEST_F(TermTest, WhatComesLateLeavesTheJobAtHand) {
  TestingCluster cluster(folder_ / "model", 1, plan::Accumulate::kFloat);
  ParameterService& service = cluster.service(0);
  const auto configure = [&](const char* job, int64_t run, int64_t term = 1) {
    proto::ConfigureRequest request = cluster.ConfigureRequest(0);
    request.set_job_id(job);
    request.set_run(run);
    request.set_term(term);
    return service.Configure(request).status();
  };
  const auto holds = [&](const char* job, int64_t run, int64_t term) {
    proto::TakeOverRequest request;
    request.set_job_id(job);
    request.set_run(run);
    request.set_term(term);
    return service.TakeOver(request)->holds();
  };
  ASSERT_OK(configure("job-a", 4));  // late, to a new process
  ASSERT_OK(configure("job-b", 5));
  EXPECT_REFUSED(configure("job-a", 4), "run 4 of job-a comes late: run 5 has begun here");
  EXPECT_TRUE(holds("job-b", 5, 1));
  proto::ReleaseJobRequest release;
  release.set_job_id("job-b");
  release.set_term(1);
  release.set_run(4);
  ASSERT_OK(service.ReleaseJob(release).status());
  EXPECT_TRUE(holds("job-b", 5, 1)) << "an earlier run of it is over";
  release.set_run(5);
  ASSERT_OK(service.ReleaseJob(release).status());
  EXPECT_TRUE(absl::IsAlreadyExists(configure("job-b", 5))) << "it was let go of";
  EXPECT_FALSE(holds("job-b", 5, 1));
  ASSERT_OK(configure("job-a", 3, /*term=*/2));  // a later life goes on with an earlier run
  EXPECT_TRUE(holds("job-a", 3, 2));
  EXPECT_TRUE(absl::IsAborted(configure("job-b", 5)));
  EXPECT_TRUE(holds("job-a", 3, 2));
}

}  // namespace
}  // namespace shoal::server
