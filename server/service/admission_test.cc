// Who may connect and push: those whom the coordinator has named, and nobody else with the token.
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kStranger = 0xdead;
static_assert(kStranger > TestingCluster::kWorkers);

class AdmissionTest : public ::testing::Test {
 protected:
  // All of worker 1's pushes of step 1, and of `also`, who takes part if it is not 0.
  void PushAll(TestingCluster& cluster, uint64_t also) {
    for (const uint64_t worker : {uint64_t{1}, also}) {
      if (worker == 0) {
        continue;
      }
      TestingClient client = Client(cluster, worker);
      ASSERT_OK(client.Connect());
      for (const plan::PartitionSpec& spec : cluster.partitions()) {
        EXPECT_EQ(client.SendAndWait(
                      {.partition = spec.id, .gradient = cluster.Gradient(worker, 1, 1, spec.id)}),
                  (TestingClient::Answer{}));
      }
    }
  }
  static TestingClient Client(TestingCluster& cluster, uint64_t incarnation) {
    return {&cluster.service(0), &cluster.client_transport(), incarnation,
            cluster.shard_map().generation};
  }
  // Ends step 1 with so many pushes of each partition; the weights' hashes.
  static std::vector<uint64_t> Commit(TestingCluster& cluster, int64_t pushes) {
    const auto prepared = cluster.Prepare(1, 1);
    EXPECT_TRUE(prepared.ok()) << Describe(prepared.status());
    EXPECT_THAT(prepared->pushes(), testing::Each(pushes));
    EXPECT_TRUE(cluster.Commit(1, 1).ok());
    return cluster.Checksums();
  }

  const TemporaryFolder folder_;
};

TEST_F(AdmissionTest, WhoHasTheTokenAloneDoesNotPush) {
  std::vector<uint64_t> undisturbed;
  for (const bool stranger : {false, true}) {
    TestingCluster cluster(folder_ / "model", 1, plan::Accumulate::kExact);
    ASSERT_OK(cluster.Configure());
    ASSERT_OK(cluster.BeginAttempt(1, 1));
    if (stranger) {
      TestingClient other = Client(cluster, kStranger);
      const absl::Status refused = other.Connect();
      EXPECT_TRUE(absl::IsPermissionDenied(refused));
      EXPECT_THAT(Describe(refused), AllOf(HasSubstr("worker-57005 (incarnation dead)"),
                                           HasSubstr("is no worker of job-1")));
      ASSERT_OK(other.Connect(/*read_only=*/true));
      EXPECT_EQ(other.granted().slots_region(), -1) << "nothing to push into";
    }
    PushAll(cluster, 0);
    const std::vector<uint64_t> committed = Commit(cluster, 1);
    undisturbed = stranger ? undisturbed : committed;
    EXPECT_EQ(committed, undisturbed);
  }
}

TEST_F(AdmissionTest, AJoinerIsAdmittedInTheMiddleOfAnAttempt) {
  TestingCluster cluster(folder_ / "model", 1, plan::Accumulate::kExact);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  const uint64_t joiner = TestingCluster::kWorkers + 1;
  EXPECT_TRUE(absl::IsPermissionDenied(Client(cluster, joiner).Connect()));
  auto admit = OfTestingJob<proto::AdmitClientsRequest>();
  admit.add_incarnation(joiner);
  for (int i = 0; i < 2; ++i) {  // a repeated call changes nothing
    ASSERT_OK(cluster.service(0).AdmitClients(admit).status());
  }
  PushAll(cluster, joiner);
  Commit(cluster, 2);
}

TEST_F(AdmissionTest, WhoIsAdmittedAgainCountsOnce) {
  TestingCluster cluster(folder_ / "model", 1, plan::Accumulate::kExact);
  ASSERT_OK(cluster.Configure());
  auto admit = OfTestingJob<proto::AdmitClientsRequest>();
  for (uint64_t client = 1; client <= 600'000; ++client) {  // more than half of the most
    admit.add_incarnation(client);
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(cluster.service(0).AdmitClients(admit).status());
  }
  for (uint64_t& client : *admit.mutable_incarnation()) {
    client += 600'000;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(cluster.service(0).AdmitClients(admit).status()));
}

TEST_F(AdmissionTest, AFencedClientIsNotAdmittedAgain) {
  TestingCluster cluster(folder_ / "model", 1, plan::Accumulate::kExact);
  ASSERT_OK(cluster.Configure());
  proto::FenceClientRequest fence;
  fence.set_incarnation(3);
  ASSERT_OK(cluster.service(0).FenceClient(fence).status());
  ASSERT_OK(TestingCluster::AdmitWorkers(cluster.service(0)));  // a call that came late
  EXPECT_THAT(Describe(Client(cluster, 3).Connect()), HasSubstr("is fenced"));
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_rpc_refused_total{reason=\"fenced\"} 1"));
}

}  // namespace
}  // namespace shoal::server
