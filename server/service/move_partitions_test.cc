// Partitions that change servers between two steps.
#include <algorithm>
#include <filesystem>
#include <set>

#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

class MovePartitionsTest : public ::testing::Test {
 protected:
  using Holders = std::vector<std::vector<int>>;  // partitions, by server

  static Holders HoldersOf(const TestingCluster& cluster) {
    return {plan::PartitionsOf(cluster.shard_map(), 0), plan::PartitionsOf(cluster.shard_map(), 1)};
  }
  static proto::ReserveRequest Reserve(int64_t generation, const std::vector<int>& partitions) {
    auto request = OfTestingJob<proto::ReserveRequest>();
    request.set_generation(generation);
    request.mutable_partitions()->Assign(partitions.begin(), partitions.end());
    return request;
  }
  static proto::FetchRequest Fetch(int64_t generation, int64_t version, int from,
                                   const std::vector<int>& partitions) {
    auto request = OfTestingJob<proto::FetchRequest>();
    request.set_generation(generation);
    request.set_version(version);
    proto::PartitionSource& source = *request.add_sources();
    source.set_address(std::to_string(from));
    source.mutable_partitions()->Assign(partitions.begin(), partitions.end());
    return request;
  }
  // Each with what it holds.
  static absl::Status Begin(TestingCluster& cluster, int64_t step, int64_t attempt,
                            int64_t generation, const Holders& holders) {
    for (int server = 0; server < cluster.servers(); ++server) {
      auto request = OfTestingJob<proto::BeginAttemptRequest>();
      request.set_step(step);
      request.set_attempt(attempt);
      request.set_generation(generation);
      const std::vector<int>& held = holders[static_cast<size_t>(server)];
      request.mutable_held()->mutable_partitions()->Assign(held.begin(), held.end());
      SHOAL_RETURN_IF_ERROR(cluster.service(server).BeginAttempt(request).status());
    }
    return absl::OkStatus();
  }
  // All pushes of a step that is open, to who holds the partitions, and its commit.
  static void Train(TestingCluster& cluster, int64_t step, int64_t attempt, int64_t generation,
                    const Holders& holders) {
    for (int server = 0; server < cluster.servers(); ++server) {
      TestingClient client(&cluster.service(server), &cluster.client_transport(), 1, generation);
      ASSERT_OK(client.Connect());
      for (const int id : holders[static_cast<size_t>(server)]) {
        ASSERT_OK(client.Read(id, step - 1, 4 * cluster.partitions()[static_cast<size_t>(id)].count)
                      .status());
        EXPECT_EQ(client.SendAndWait({.partition = id,
                                      .step = step,
                                      .attempt = attempt,
                                      .gradient = cluster.Gradient(1, step, 1, id)}),
                  (TestingClient::Answer{}));
      }
    }
    ASSERT_OK(cluster.Prepare(step, attempt).status());
    ASSERT_OK(cluster.Commit(step, attempt));
  }
  // Of partitions from one server to the other, and the step that begins with them there.
  static void Move(TestingCluster& cluster, int from, const std::vector<int>& moved, int64_t step,
                   int64_t generation, Holders& holders) {
    ParameterService& to = cluster.service(1 - from);
    const auto reserved = to.Reserve(Reserve(generation, moved));
    ASSERT_OK(reserved.status());
    EXPECT_GT(reserved->bytes(), 0);
    const auto fetched = to.Fetch(Fetch(generation, step - 1, from, moved));
    ASSERT_OK(fetched.status());
    int64_t elements = 0;
    for (const int id : moved) {
      elements += cluster.partitions()[static_cast<size_t>(id)].count;
      std::erase(holders[static_cast<size_t>(from)], id);
      holders[static_cast<size_t>(1 - from)].push_back(id);
    }
    EXPECT_EQ(fetched->bytes(), 12 * elements);
    // Repeated, as when an answer is lost.
    EXPECT_EQ(to.Reserve(Reserve(generation, moved))->bytes(), reserved->bytes());
    EXPECT_EQ(to.Fetch(Fetch(generation, step - 1, from, moved))->bytes(), fetched->bytes());
    ASSERT_OK(Begin(cluster, step, 1, generation, holders));
    ASSERT_OK(Begin(cluster, step, 1, generation, holders));
  }

  const TemporaryFolder folder_;
};

TEST_F(MovePartitionsTest, TheJobGoesOnWithTheSameBits) {
  TestingCluster still(folder_ / "model", 2, plan::Accumulate::kExact);
  TestingCluster moves(folder_ / "model", 2, plan::Accumulate::kExact);
  Holders stay = HoldersOf(still);
  Holders holders = stay;
  for (TestingCluster* cluster : {&still, &moves}) {
    ASSERT_OK(cluster->Configure());
    for (int64_t step = 1; step <= 2; ++step) {
      ASSERT_OK(cluster->BeginAttempt(step, 1));
      Train(*cluster, step, 1, 1, stay);
    }
  }
  for (int64_t step = 3; step <= 6; ++step) {
    ASSERT_OK(still.BeginAttempt(step, 1));
    Train(still, step, 1, 1, stay);
  }
  // Whoever has written a checkpoint waits for it with none of what comes later.
  auto checkpoint = OfTestingJob<proto::WriteCheckpointRequest>();
  checkpoint.set_version(2);
  checkpoint.set_directory(folder_ / "checkpoint");
  ASSERT_TRUE(std::filesystem::create_directory(folder_ / "checkpoint"));
  ASSERT_OK(moves.service(0).WriteCheckpoint(checkpoint).status());
  // All of server 1 goes, and half of all comes to it again.
  Move(moves, 1, stay[1], 3, 10, holders);
  EXPECT_TRUE(holders[1].empty());
  Train(moves, 3, 1, 10, holders);
  ASSERT_OK(Begin(moves, 4, 1, 10, holders));
  Train(moves, 4, 1, 10, holders);
  Move(moves, 0, stay[0], 5, 20, holders);
  Train(moves, 5, 1, 20, holders);
  ASSERT_OK(Begin(moves, 6, 1, 20, holders));
  Train(moves, 6, 1, 20, holders);
  EXPECT_EQ(still.Checksums(), moves.Checksums());
}

TEST_F(MovePartitionsTest, WhatIsGivenUpLeavesNothingBehind) {
  TestingCluster cluster(folder_ / "model", 2, plan::Accumulate::kExact);
  ASSERT_OK(cluster.Configure());
  const Holders holders = HoldersOf(cluster);
  const auto resident = [&cluster] {
    const std::string text = cluster.MetricsText(0);
    return text.substr(text.find("shoal_ps_resident_bytes"));
  };
  const std::string before = resident();
  ASSERT_OK(cluster.service(0).Reserve(Reserve(5, holders[1])).status());
  EXPECT_NE(resident(), before);
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  EXPECT_EQ(resident().substr(0, 200), before.substr(0, 200));
  EXPECT_THAT(Describe(cluster.service(0).Fetch(Fetch(5, 0, 1, holders[1])).status()),
              HasSubstr("nothing is reserved here for shard map generation 5"));
  EXPECT_THAT(Describe(cluster.service(0).Reserve(Reserve(5, holders[1])).status()),
              HasSubstr("comes late"));
  Train(cluster, 1, 1, 1, holders);
}

TEST_F(MovePartitionsTest, RefusesWhatCannotBeByName) {
  TestingCluster cluster(folder_ / "model", 2, plan::Accumulate::kExact);
  ASSERT_OK(cluster.Configure());
  Holders holders = HoldersOf(cluster);
  ParameterService& to = cluster.service(0);
  EXPECT_THAT(Describe(to.Reserve(Reserve(5, {holders[0][0]})).status()), HasSubstr("it is here"));
  EXPECT_THAT(Describe(to.Reserve(Reserve(5, {-1})).status()), HasSubstr("the job has none"));
  EXPECT_THAT(Describe(to.Reserve(Reserve(5, {1 << 20})).status()), HasSubstr("the job has none"));
  const int one = holders[1][0];
  EXPECT_THAT(Describe(to.Reserve(Reserve(5, {one, one})).status()), HasSubstr("one twice"));
  ASSERT_OK(to.Reserve(Reserve(5, {one})).status());
  EXPECT_THAT(Describe(to.Fetch(Fetch(5, 0, 1, {})).status()), HasSubstr("nobody is named"));
  EXPECT_THAT(Describe(to.Fetch(Fetch(5, 7, 1, {one})).status()),
              HasSubstr("version 7 of the state is wanted, 0 is published"));
  // It did not come, so that nothing can begin with it.
  holders[0].push_back(one);
  EXPECT_THAT(Describe(Begin(cluster, 1, 1, 5, holders)), HasSubstr("did not come to this server"));
  ASSERT_OK(cluster.BeginAttempt(1, 1));
}

}  // namespace
}  // namespace shoal::server
