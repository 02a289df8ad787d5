// A job of many partitions, servers and workers.
#include "server/coordinator/testing/many_members.h"

#include <algorithm>
#include <vector>

#include "core/base/logging.h"
#include "core/job/shard_map_message.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

constexpr size_t kMostBytesOfAWave = 20'000;

size_t LargestAnswer(const testing::ManyMembers& members, int workers) {
  size_t largest = 0;
  for (int worker = 0; worker < workers; ++worker) {
    largest = std::max(largest, members.join(worker).ByteSizeLong());
  }
  return largest;
}

void ExpectWavesThatCostLittle(const testing::ManyMembers::Options& options) {
  testing::ManyMembers members(options);
  EXPECT_GT(members.join(0).shard_map().ByteSizeLong(), 3 * kMostBytesOfAWave);
  const plan::ShardMap first = plan::FromMessage(members.join(0).shard_map());
  proto::KnownMap of_before;
  of_before.set_job_id(members.join(0).job_id());
  of_before.set_run(members.join(0).run());
  of_before.set_generation(first.generation);
  plan::ShardMap known = first;
  members.ScaleToAll();
  for (int wave = 1; wave <= 3; ++wave) {
    members.RunStep();
    const int64_t before = members.questions();
    members.Barrier();
    // The last one reports, then each asks once; who has peers is told to join anew.
    EXPECT_EQ(members.questions() - before, 1 + (options.exchange ? 3 : 1) * options.workers);
    const proto::JoinJobReply& join = members.join(0);
    ASSERT_TRUE(join.has_map_change());
    const plan::MapChange change = *plan::ChangeFromBytes(join.map_change());
    EXPECT_NEAR(static_cast<double>(change.partitions.size()), 500, 30);
    EXPECT_EQ(join.servers_size(), wave == 1 ? options.servers + options.spares : 0);
    const size_t bytes = LargestAnswer(members, options.workers);
    EXPECT_LE(bytes, kMostBytesOfAWave);
    ::testing::Test::RecordProperty(fmt::format("bytes_of_wave_{}", wave), static_cast<int>(bytes));
    known = *plan::Apply(known, change);
  }
  EXPECT_EQ(members.planned_at_borders(), 0);
  EXPECT_EQ(known.generation,
            plan::ChangeFromBytes(members.join(options.workers - 1).map_change())->to);
  // Whoever was away for all waves is told of all.
  const proto::JoinJobReply back = members.JoinKnowing(1, of_before);
  ASSERT_TRUE(back.has_map_change());
  EXPECT_EQ(back.servers_size(), options.servers + options.spares);
  EXPECT_EQ(*plan::Apply(first, *plan::ChangeFromBytes(back.map_change())), known);
}

TEST(ManyMembers, AWaveCostsAWorkerLittle) { ExpectWavesThatCostLittle({}); }

TEST(ManyMembers, AWaveCostsAWorkerLittleThatExchangesGradients) {
  ExpectWavesThatCostLittle({.exchange = true});
}

TEST(ManyMembers, AWaveThatWasPlannedForAnotherWishIsPlannedAnew) {
  testing::ManyMembers members({.servers = 4, .spares = 2, .workers = 2, .partitions = 60});
  members.ScaleToAll();
  members.RunStep();
  members.Scale(5);
  members.Barrier();
  EXPECT_EQ(members.planned_at_borders(), 1);
  EXPECT_EQ(members.Scaling().servers(), 5);
}

// What it has said of itself since it was told them shows that it was.
TEST(ManyMembers, WhoHasNotAskedForWorkSinceItWasToldItsPeersIsToldThemAgain) {
  testing::ManyMembers members(
      {.servers = 2, .spares = 1, .workers = 3, .partitions = 40, .exchange = true});
  const proto::JoinJobReply& first = members.join(0);
  EXPECT_EQ(first.peers_size(), 3);
  proto::KnownMap known;
  known.set_job_id(first.job_id());
  known.set_run(first.run());
  known.set_generation(first.shard_map().generation());
  EXPECT_EQ(members.JoinKnowing(1, known).peers_size(), 0);
  EXPECT_EQ(members.JoinKnowing(1, {}).peers_size(), 3) << "which it has forgotten";
}

TEST(ManyMembers, WhatHasChangedLeadsToTheMapThatOthersAreToldWhole) {
  for (const int64_t replicas : {1, 2}) {
    constexpr int kWorkers = 6;
    testing::ManyMembers members({.servers = 8,
                                  .spares = 1,
                                  .workers = kWorkers,
                                  .partitions = 400,
                                  .replicas = replicas,
                                  .read_replicas = replicas > 1,
                                  .hosts = 3});
    std::vector<proto::JoinJobReply> first;
    for (int worker = 0; worker < kWorkers; ++worker) {
      first.push_back(members.JoinKnowing(worker, {}));
    }
    members.ScaleToAll();
    members.RunStep();
    members.Barrier();
    for (int worker = 0; worker < kWorkers; ++worker) {
      const proto::JoinJobReply& join = members.join(worker);
      ASSERT_TRUE(join.has_map_change());
      EXPECT_FALSE(join.has_shard_map());
      EXPECT_FALSE(join.has_job());
      EXPECT_EQ(join.servers_size(), 9) << "they are others";
      const proto::JoinJobReply whole = members.JoinKnowing(worker, {});
      const plan::ShardMap map = plan::FromMessage(whole.shard_map());
      EXPECT_EQ(map.readers.empty(), replicas == 1);
      EXPECT_EQ(*plan::Apply(plan::FromMessage(first[static_cast<size_t>(worker)].shard_map()),
                             *plan::ChangeFromBytes(join.map_change())),
                map);
    }
  }
}

TEST(ManyMembers, WhoKnowsNothingOfTheRunIsToldTheWholeMap) {
  testing::ManyMembers members({.servers = 2, .spares = 0, .workers = 1, .partitions = 10});
  const proto::JoinJobReply join = members.join(0);
  proto::KnownMap newest;
  newest.set_job_id(join.job_id());
  newest.set_run(join.run());
  newest.set_generation(join.shard_map().generation());
  const proto::JoinJobReply same = members.JoinKnowing(0, newest);
  EXPECT_FALSE(same.has_shard_map());
  EXPECT_TRUE(plan::ChangeFromBytes(same.map_change())->partitions.empty());
  EXPECT_EQ(same.servers_size(), 0);
  const auto is_told_all = [&](auto change_it) {
    proto::KnownMap known = newest;
    change_it(known);
    proto::JoinJobReply reply = members.JoinKnowing(0, known);
    return reply.SerializeAsString() == join.SerializeAsString();
  };
  EXPECT_TRUE(is_told_all([](proto::KnownMap& known) { known.set_job_id("job-of-before"); }));
  EXPECT_TRUE(is_told_all([](proto::KnownMap& known) { known.set_run(known.run() + 1); }));
  EXPECT_TRUE(is_told_all([](auto& known) { known.set_generation(known.generation() + 1); }));
  EXPECT_TRUE(is_told_all([](auto& known) { known.set_generation(known.generation() - 1); }));
}

}  // namespace
}  // namespace shoal::server
