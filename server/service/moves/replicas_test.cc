// Partitions that two servers have, and of which one is lost.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/base/testing/status.h"
#include "core/job/shard_map_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/moves.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

class ReplicasTest : public MovesTest {
 protected:
  // Two servers, each with what the other has as backups.
  static absl::Status Configure(TestingCluster& cluster, bool read_replicas = false) {
    plan::Job job = cluster.job();
    job.cluster.servers = 2;
    job.service.replicas = 2;
    job.service.read_replicas = read_replicas;
    for (int server = 0; server < 2; ++server) {
      proto::ConfigureRequest request = cluster.ConfigureRequest(server, "");
      *request.mutable_job() = plan::ToMessage(job);
      plan::ShardMap map = plan::FromMessage(request.shard_map());
      for (plan::Holders& holders : map.servers) {
        holders.push_back(1 - holders.front());
      }
      *request.mutable_shard_map() = plan::ToMessage(map);
      SHOAL_RETURN_IF_ERROR(cluster.service(server).Configure(request).status());
      SHOAL_RETURN_IF_ERROR(TestingCluster::AdmitWorkers(cluster.service(server)));
    }
    return absl::OkStatus();
  }
  static absl::StatusOr<int64_t> Replicate(TestingCluster& cluster, int server, int64_t step,
                                           int64_t attempt, const Holders& holders) {
    auto request = OfTestingJob<proto::ReplicateRequest>();
    request.set_step(step);
    request.set_attempt(attempt);
    proto::PartitionSource& source = *request.add_sources();
    source.set_address(std::to_string(1 - server));
    const std::vector<int>& partitions = holders[static_cast<size_t>(1 - server)];
    source.mutable_partitions()->Assign(partitions.begin(), partitions.end());
    SHOAL_ASSIGN_OR_RETURN(const proto::ReplicateReply reply,
                           cluster.service(server).Replicate(request));
    return reply.bytes();
  }
  static absl::Status ReplicateAll(TestingCluster& cluster, int64_t step, int64_t attempt,
                                   const Holders& holders) {
    for (int server = 0; server < 2; ++server) {
      SHOAL_RETURN_IF_ERROR(Replicate(cluster, server, step, attempt, holders).status());
    }
    return absl::OkStatus();
  }
  // So many pushes come to each partition; its gradient goes to its backup with the last.
  static absl::Status BeginTelling(TestingCluster& cluster, int64_t step, int64_t attempt,
                                   int64_t pushes, const Holders& holders) {
    for (int server = 0; server < 2; ++server) {
      auto request = OfTestingJob<proto::BeginAttemptRequest>();
      request.set_step(step);
      request.set_attempt(attempt);
      request.set_generation(1);
      for (const plan::PartitionSpec& spec : cluster.partitions()) {
        request.mutable_unit_pushes()->Resize(spec.unit + 1, pushes);
      }
      const std::vector<int>& held = holders[static_cast<size_t>(server)];
      proto::BackupPlace& backup = *request.add_backups();
      backup.set_address(std::to_string(1 - server));
      backup.mutable_partitions()->Assign(held.begin(), held.end());
      SHOAL_RETURN_IF_ERROR(cluster.service(server).BeginAttempt(request).status());
    }
    return absl::OkStatus();
  }
  // How often a server was called so, and all was well.
  static int64_t Calls(const TestingCluster& cluster, int server, const std::string& operation) {
    const std::string counter = "shoal_ps_requests_total{code=\"OK\",op=\"" + operation + "\"} ";
    const std::string text = cluster.MetricsText(server);
    const size_t at = text.find(counter);
    return at == std::string::npos ? 0 : std::stoll(text.substr(at + counter.size()));
  }
  static void AwaitGradients(const TestingCluster& cluster, int server, int64_t count) {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (Calls(cluster, server, "take_gradient") < count) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  static TestingClient::Push FirstPush(const TestingCluster& cluster, int64_t step, int64_t attempt,
                                       int partition, int64_t sequence) {
    return {.partition = partition,
            .step = step,
            .attempt = attempt,
            .sequence = sequence,
            .gradient = cluster.Gradient(1, step, sequence, partition)};
  }
  static std::vector<int> Trained(const TestingCluster& cluster, std::vector<int> partitions) {
    std::erase_if(partitions, [&cluster](int id) {
      return cluster.partitions()[static_cast<size_t>(id)].frozen;
    });
    return partitions;
  }
  static void Push(TestingCluster& cluster, int server, int64_t step, int64_t attempt,
                   int64_t generation, const std::vector<int>& partitions) {
    TestingClient client(&cluster.service(server), &cluster.client_transport(), 1, generation);
    ASSERT_OK(client.Connect());
    PushOver(client, cluster, step, attempt, partitions);
  }
  // Of server 0, whose backups are at server 1.
  static void ExpectSameAtBackup(TestingCluster& cluster, const std::vector<int>& partitions) {
    const auto at_primary = ChecksumsAt(cluster, 0);
    const auto at_backup = ChecksumsAt(cluster, 1);
    for (const int id : partitions) {
      EXPECT_EQ(at_primary.at(id), at_backup.at(id)) << id;
    }
  }
  // Of a server, all that it has, by partition.
  static std::map<int, uint64_t> ChecksumsAt(TestingCluster& cluster, int server) {
    const auto reply =
        cluster.service(server).GetChecksums(OfTestingJob<proto::GetChecksumsRequest>());
    EXPECT_TRUE(reply.ok());
    std::map<int, uint64_t> hashes;
    for (const auto* const all : {&reply->partitions(), &reply->backups()}) {
      for (const proto::PartitionChecksum& partition : *all) {
        EXPECT_TRUE(hashes.emplace(partition.partition(), partition.hash()).second);
      }
    }
    return hashes;
  }
};

INSTANTIATE_TEST_SUITE_P(All, ReplicasTest, ::testing::Bool(), FreezesTest::NameOf);

TEST_P(ReplicasTest, BackupsHaveTheBitsOfPrimaries) {
  for (const auto accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    TestingCluster cluster(folder_ / "model", 2, accumulate);
    const Holders holders = HoldersOf(cluster);
    ASSERT_OK(Configure(cluster));
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_OK(cluster.BeginAttempt(step, 1));
      for (int server = 0; server < 2; ++server) {
        Push(cluster, server, step, 1, 1, holders[static_cast<size_t>(server)]);
      }
      EXPECT_FALSE(Replicate(cluster, 0, step, 1, holders).ok());  // nothing is sealed
      ASSERT_OK(cluster.Prepare(step, 1).status());
      const absl::Status early = cluster.Commit(step, 1);
      EXPECT_THAT(early.message(), HasSubstr("backups have not got its gradients"));
      int64_t bytes = 0;
      for (int server = 0; server < 2; ++server) {
        const auto replicated = Replicate(cluster, server, step, 1, holders);
        ASSERT_OK(replicated.status());
        EXPECT_EQ(*Replicate(cluster, server, step, 1, holders), *replicated);
        bytes += *replicated;
      }
      EXPECT_EQ(bytes, 4 * cluster.trained_elements());
      ASSERT_OK(cluster.Commit(step, 1));
      std::map<int, uint64_t> at[] = {ChecksumsAt(cluster, 0), ChecksumsAt(cluster, 1)};
      for (auto& hashes : at) {  // backups of what is frozen have nothing
        std::erase_if(hashes, [&cluster](const auto& hash) {
          return cluster.partitions()[static_cast<size_t>(hash.first)].frozen;
        });
      }
      EXPECT_EQ(at[0], at[1]) << step;
    }
  }
}

TEST_P(ReplicasTest, BackupsServeTheWeightsOfPrimariesWhereThatIsAskedFor) {
  TestingCluster cluster(folder_ / "model", 2, plan::Accumulate::kExact);
  TestingCluster without(folder_ / "model", 2, plan::Accumulate::kExact);
  const Holders holders = HoldersOf(cluster);
  ASSERT_OK(Configure(cluster, /*read_replicas=*/true));
  ASSERT_OK(Configure(without));
  EXPECT_GT(Resident(cluster)["param"], Resident(without)["param"]);
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_OK(cluster.BeginAttempt(step, 1));
    std::vector<std::unique_ptr<TestingClient>> clients;
    for (int server = 0; server < 2; ++server) {
      clients.push_back(std::make_unique<TestingClient>(
          &cluster.service(server), &cluster.client_transport(), 1, /*generation=*/1));
      ASSERT_OK(clients.back()->Connect());
    }
    for (const plan::PartitionSpec& spec : cluster.partitions()) {
      const int64_t version = spec.frozen ? 0 : step - 1;
      const auto at_first = clients[0]->Read(spec.id, version, 4 * spec.count);
      const auto at_second = clients[1]->Read(spec.id, version, 4 * spec.count);
      ASSERT_OK(at_first.status());
      ASSERT_OK(at_second.status());
      EXPECT_EQ(*at_first, *at_second) << spec.id;
    }
    for (int server = 0; server < 2; ++server) {
      Push(cluster, server, step, 1, 1, holders[static_cast<size_t>(server)]);
    }
    ASSERT_OK(cluster.Prepare(step, 1).status());
    ASSERT_OK(ReplicateAll(cluster, step, 1, holders));
    ASSERT_OK(cluster.Commit(step, 1));
  }
  const std::vector<int> backed = Trained(cluster, holders[1]);
  TestingClient reader(&without.service(0), &without.client_transport(), 1, /*generation=*/1);
  ASSERT_OK(reader.Connect());
  EXPECT_EQ(std::ranges::count_if(reader.granted().partitions(),
                                  [&](const auto& location) {
                                    return std::ranges::find(backed, location.partition()) !=
                                           backed.end();
                                  }),
            0);
}

// While others are still pushed to: that is, before any worker has reported.
TEST_P(ReplicasTest, AGradientIsWithItsBackupOnceItsLastContributionIsIn) {
  for (const auto accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    TestingCluster cluster(folder_ / "model", 2, accumulate);
    const Holders holders = HoldersOf(cluster);
    ASSERT_OK(Configure(cluster));
    ASSERT_OK(BeginTelling(cluster, 1, 1, /*pushes=*/2, holders));
    TestingClient client(&cluster.service(0), &cluster.client_transport(), 1, /*generation=*/1);
    ASSERT_OK(client.Connect());
    const std::vector<int> held = Trained(cluster, holders[0]);
    const int first = held.front();
    for (const int id : held) {
      EXPECT_EQ(client.SendAndWait(FirstPush(cluster, 1, 1, id, 1)), (TestingClient::Answer{}));
    }
    EXPECT_EQ(client.SendAndWait(FirstPush(cluster, 1, 1, first, 2)), (TestingClient::Answer{}));
    AwaitGradients(cluster, /*server=*/1, 1);
    EXPECT_EQ(client.SendAndWait(FirstPush(cluster, 1, 1, first, 3)),
              (TestingClient::Answer{.code = absl::StatusCode::kFailedPrecondition}))
        << "there is none after the last";
    EXPECT_EQ(client.SendAndWait(FirstPush(cluster, 1, 1, first, 2)),
              (TestingClient::Answer{.applied_before = true}));
    for (const int id : held) {
      if (id != first) {
        EXPECT_EQ(client.SendAndWait(FirstPush(cluster, 1, 1, id, 2)), (TestingClient::Answer{}));
      }
    }
    AwaitGradients(cluster, 1, std::ssize(held));
    Push(cluster, 1, 1, 1, 1, holders[1]);
    EXPECT_EQ(Calls(cluster, 0, "take_gradient"), 0) << "half of its contributions are missing";
    ASSERT_OK(cluster.Prepare(1, 1).status());
    ASSERT_OK(ReplicateAll(cluster, 1, 1, holders));
    EXPECT_EQ(Calls(cluster, 0, "read_state"), 0) << "all of it was there";
    EXPECT_EQ(Calls(cluster, 1, "read_state"), std::ssize(Trained(cluster, holders[1])));
    ASSERT_OK(cluster.Commit(1, 1));
    ExpectSameAtBackup(cluster, held);
  }
}

TEST_P(ReplicasTest, WhatCameForADroppedAttemptIsVoid) {
  TestingCluster cluster(folder_ / "model", 2, plan::Accumulate::kFloat);
  const Holders holders = HoldersOf(cluster);
  ASSERT_OK(Configure(cluster));
  ASSERT_OK(BeginTelling(cluster, 1, 1, /*pushes=*/1, holders));
  TestingClient client(&cluster.service(0), &cluster.client_transport(), 1, /*generation=*/1);
  ASSERT_OK(client.Connect());
  const std::vector<int> held = Trained(cluster, holders[0]);
  for (const int id : held) {
    EXPECT_EQ(client.SendAndWait(FirstPush(cluster, 1, 1, id, 1)), (TestingClient::Answer{}));
  }
  AwaitGradients(cluster, 1, std::ssize(held));
  ASSERT_OK(cluster.BeginAttempt(1, 2));
  auto late = OfTestingJob<proto::TakeGradientRequest>();
  late.set_step(1);
  late.set_attempt(1);
  late.set_partition(held.front());
  EXPECT_TRUE(cluster.service(1).TakeGradient(late)->late());
  for (const int id : held) {
    EXPECT_EQ(client.SendAndWait(FirstPush(cluster, 1, 2, id, 7)), (TestingClient::Answer{}));
  }
  Push(cluster, 1, 1, 2, 1, holders[1]);
  ASSERT_OK(cluster.Prepare(1, 2).status());
  ASSERT_OK(ReplicateAll(cluster, 1, 2, holders));
  ASSERT_OK(cluster.Commit(1, 2));
  ExpectSameAtBackup(cluster, held);
}

TEST_P(ReplicasTest, ABackupTakesThePlaceOfAServerThatIsLost) {
  TestingCluster still(folder_ / "model", 1, plan::Accumulate::kExact);
  TestingCluster cluster(folder_ / "model", 2, plan::Accumulate::kExact);
  const Holders holders = HoldersOf(cluster);
  ASSERT_OK(Configure(cluster));
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  for (int server = 0; server < 2; ++server) {
    Push(cluster, server, 1, 1, 1, holders[static_cast<size_t>(server)]);
  }
  ASSERT_OK(cluster.Prepare(1, 1).status());
  for (int server = 0; server < 2; ++server) {
    ASSERT_OK(Replicate(cluster, server, 1, 1, holders).status());
  }
  ASSERT_OK(cluster.Commit(1, 1));
  ASSERT_OK(cluster.BeginAttempt(2, 1));
  // Server 1 is gone: server 0 has all of it, from its backups.
  ParameterService& left = cluster.service(0);
  ASSERT_OK(left.Reserve(Reserve(2, holders[1])).status());
  auto fetch = Fetch(2, 1, 0, holders[1]);
  fetch.mutable_sources(0)->clear_address();
  ASSERT_OK(left.Fetch(fetch).status());
  auto begin = OfTestingJob<proto::BeginAttemptRequest>();
  begin.set_step(2);
  begin.set_attempt(2);
  begin.set_generation(2);
  std::vector<int> all = holders[0];
  all.insert(all.end(), holders[1].begin(), holders[1].end());
  begin.mutable_held()->mutable_partitions()->Assign(all.begin(), all.end());
  ASSERT_OK(left.BeginAttempt(begin).status());
  Push(cluster, 0, 2, 2, 2, all);
  auto prepare = OfTestingJob<proto::PrepareRequest>();
  prepare.set_step(2);
  prepare.set_attempt(2);
  ASSERT_OK(left.Prepare(prepare).status());
  auto commit = OfTestingJob<proto::CommitRequest>();
  commit.set_step(2);
  commit.set_attempt(2);
  commit.set_learning_rate(1e-3);
  commit.set_clip_coefficient(1);
  ASSERT_OK(left.Commit(commit).status());
  ASSERT_OK(still.Configure());
  for (int64_t step = 1; step <= 2; ++step) {
    ASSERT_OK(still.BeginAttempt(step, 1));
    Train(still, step, 1, 1, {all});
  }
  EXPECT_EQ(ChecksumsAt(cluster, 0), ChecksumsAt(still, 0));
}

}  // namespace
}  // namespace shoal::server
