// Partitions that change servers between two steps.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/transport/testing/forwarding_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/moves.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

class MovePartitionsTest : public MovesTest {};

INSTANTIATE_TEST_SUITE_P(All, MovePartitionsTest, ::testing::Bool(), FreezesTest::NameOf);

TEST_P(MovePartitionsTest, TheJobGoesOnWithTheSameBits) {
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

// What is to come in several waves is reserved with the first, so that clients connect once.
TEST_P(MovePartitionsTest, WavesComeIntoWhatWasReservedForAll) {
  TestingCluster still(folder_ / "model", 2, plan::Accumulate::kExact);
  TestingCluster moves(folder_ / "model", 2, plan::Accumulate::kExact);
  const Holders stay = HoldersOf(still);
  Holders holders = stay;
  ASSERT_GE(stay[1].size(), 2U);
  for (TestingCluster* cluster : {&still, &moves}) {
    ASSERT_OK(cluster->Configure());
  }
  const int first = stay[1].front();
  const std::vector<int> rest(stay[1].begin() + 1, stay[1].end());
  ParameterService& to = moves.service(0);
  const auto at_first = Resident(moves);
  const auto wish = to.Reserve(Reserve(10, stay[1]));
  ASSERT_OK(wish.status());
  auto only_weights = at_first;
  only_weights["param"] = Resident(moves)["param"];
  EXPECT_GT(only_weights["param"], at_first.at("param"));
  EXPECT_EQ(Resident(moves), only_weights) << "state is made when it is fetched";
  ASSERT_OK(to.Fetch(Fetch(10, 0, 1, {first})).status());
  holders[0].push_back(first);
  holders[1] = rest;
  ASSERT_OK(Begin(moves, 1, 1, 10, holders));
  EXPECT_EQ(Resident(moves)["param"], only_weights["param"]);
  // What the rest needs, to the byte: its weights have their place.
  moves.available_memory = wish->bytes() - (Total(Resident(moves)) - Total(at_first));
  TestingClient reader(&to, &moves.client_transport(), 2, 10);
  ASSERT_OK(reader.Connect());
  Train(moves, 1, 1, 10, holders);
  ASSERT_OK(to.Reserve(Reserve(11, rest)).status());
  EXPECT_FALSE(to.Fetch(Fetch(11, 7, 1, rest)).ok()) << "given up in the middle";
  ASSERT_OK(to.Fetch(Fetch(11, 1, 1, rest)).status());
  EXPECT_EQ(Total(Resident(moves)), Total(at_first) + wish->bytes());
  holders[0].insert(holders[0].end(), rest.begin(), rest.end());
  holders[1].clear();
  ASSERT_OK(Begin(moves, 2, 1, 11, holders));
  for (const int id : stay[1]) {
    const plan::PartitionSpec& spec = moves.partitions()[static_cast<size_t>(id)];
    ASSERT_OK(reader.Read(id, spec.frozen ? 0 : 1, 4 * spec.count).status());
  }
  Train(moves, 2, 1, 11, holders);
  for (int64_t step = 1; step <= 2; ++step) {
    ASSERT_OK(still.BeginAttempt(step, 1));
    Train(still, step, 1, 1, stay);
  }
  EXPECT_EQ(still.Checksums(), moves.Checksums());
}

TEST_P(MovePartitionsTest, WhatIsGivenUpLeavesNothingBehind) {
  TestingCluster cluster(folder_ / "model", 2, plan::Accumulate::kExact);
  ASSERT_OK(cluster.Configure());
  const Holders holders = HoldersOf(cluster);
  const auto before = Resident(cluster);
  ASSERT_OK(cluster.service(0).Reserve(Reserve(5, holders[1])).status());
  EXPECT_NE(Resident(cluster), before);
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  EXPECT_EQ(Resident(cluster), before);
  EXPECT_THAT(Describe(cluster.service(0).Fetch(Fetch(5, 0, 1, holders[1])).status()),
              HasSubstr("nothing is reserved here for shard map generation 5"));
  EXPECT_THAT(Describe(cluster.service(0).Reserve(Reserve(5, holders[1])).status()),
              HasSubstr("comes late"));
  Train(cluster, 1, 1, 1, holders);
}

TEST_P(MovePartitionsTest, RefusesWhatCannotBeByName) {
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
  EXPECT_THAT(Describe(to.Fetch(Fetch(5, 0, 1, {one, holders[1][1]})).status()),
              HasSubstr("1 of the 2 partitions that are to come are reserved"));
  if (!cluster.partitions()[static_cast<size_t>(one)].frozen) {
    EXPECT_THAT(Describe(to.Fetch(Fetch(5, 7, 1, {one})).status()),
                HasSubstr("version 7 of the state is wanted, 0 is published"));
  }
  // It did not come, so that nothing can begin with it.
  holders[0].push_back(one);
  EXPECT_THAT(Describe(Begin(cluster, 1, 1, 5, holders)), HasSubstr("did not come to this server"));
  ASSERT_OK(cluster.BeginAttempt(1, 1));
}

// What an earlier wave of the wish has reserved is there for later ones, each of which says what it
// has memory for.
TEST_P(MovePartitionsTest, AFetchBringsNoMoreThanItsReserveAskedFor) {
  TestingCluster cluster(folder_ / "model", 2, plan::Accumulate::kExact);
  ASSERT_OK(cluster.Configure());
  Holders holders = HoldersOf(cluster);
  ASSERT_GE(holders[1].size(), 3U);
  const auto [first, second, third] = std::tuple(holders[1][0], holders[1][1], holders[1][2]);
  ParameterService& to = cluster.service(0);
  ASSERT_OK(to.Reserve(Reserve(5, holders[1])).status());
  ASSERT_OK(to.Fetch(Fetch(5, 0, 1, {first})).status());
  holders[0].push_back(first);
  std::erase(holders[1], first);
  ASSERT_OK(Begin(cluster, 1, 1, 5, holders));
  ASSERT_OK(to.Reserve(Reserve(6, {second})).status());
  EXPECT_THAT(Describe(to.Fetch(Fetch(6, 0, 1, {second, third})).status()),
              HasSubstr("1 of the 2 partitions that are to come are reserved"));
  ASSERT_OK(to.Fetch(Fetch(6, 0, 1, {second})).status());
}

// Calls something when a handshake is about to be answered.
class AnsweringTransport final : public transport::ForwardingTransport {
 public:
  AnsweringTransport(std::unique_ptr<transport::Transport> inner,
                     const std::function<void()>& before_answer)
      : ForwardingTransport(std::move(inner)), before_answer_(before_answer) {}

  absl::StatusOr<transport::Acceptance> Accept(
      const std::string& offer, const transport::ConnectionOptions& options) override {
    before_answer_();
    return ForwardingTransport::Accept(offer, options);
  }

 private:
  const std::function<void()>& before_answer_;
};

// An attempt begins by the old map, as when a wave is given up, which lets go of what was reserved.
TEST_P(MovePartitionsTest, AHandshakeGrantsWhatItExposesAlsoWhereThatGoesMeanwhile) {
  std::function<void()> before_answer = [] {};
  TestingCluster cluster(
      folder_ / "model", 2, plan::Accumulate::kExact, 1 << 14,
      {.wrap_server = [&before_answer](std::unique_ptr<transport::Transport> inner) {
        return std::make_unique<AnsweringTransport>(std::move(inner), before_answer);
      }});
  ASSERT_OK(cluster.Configure());
  const Holders holders = HoldersOf(cluster);
  ASSERT_OK(cluster.service(0).Reserve(Reserve(5, holders[1])).status());
  const auto reserved = Resident(cluster);
  before_answer = [&] { ASSERT_OK(cluster.BeginAttempt(1, 1)); };
  TestingClient client(&cluster.service(0), &cluster.client_transport(), 1, 1);
  ASSERT_OK(client.Connect());
  EXPECT_LT(Total(Resident(cluster)), Total(reserved)) << "it has not gone";
  ASSERT_EQ(client.granted().extents_size(), 2);
  std::map<int, int> extents;  // by partition
  for (const proto::PartitionLocation& location : client.granted().partitions()) {
    extents[location.partition()] = location.extent();
  }
  for (const plan::PartitionSpec& spec : cluster.partitions()) {
    const bool held = std::ranges::find(holders[0], spec.id) != holders[0].end();
    ASSERT_TRUE(extents.contains(spec.id)) << spec.id;
    EXPECT_EQ(extents.at(spec.id), held ? 0 : 1) << spec.id;
    const absl::Status read = client.Read(spec.id, 0, 4 * spec.count).status();
    EXPECT_TRUE(held ? read.ok() : !absl::IsOutOfRange(read)) << spec.id << ": " << read;
  }
  EXPECT_FALSE(client.closed());
}

}  // namespace
}  // namespace shoal::server
