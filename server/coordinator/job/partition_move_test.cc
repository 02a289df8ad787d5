// What is to move where, and whether it fits.
#include "server/coordinator/job/partition_move.h"

#include <algorithm>
#include <set>

#include "core/base/testing/status.h"
#include "core/plan/placement/placement.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kElements = 1 << 20;
// Of a partition: weights of two versions, master, moments and gradient, with padding.
constexpr int64_t kEach = 24 * kElements;
constexpr int64_t kMost = kEach + kEach / 100;

class PartitionMoveTest : public ::testing::Test {
 protected:
  PartitionMoveTest() {
    for (int id = 0; id < 8; ++id) {
      partitions_.push_back({.id = id, .unit = id, .count = kElements});
      now_.servers.push_back({id % 2});
    }
    service_.wire_type = DType::kF32;
    service_.accumulate = plan::Accumulate::kFloat;
  }
  static Member Server(int index, int64_t free) {
    return {.role = proto::ROLE_SERVER,
            .index = index,
            .incarnation = 100U + static_cast<uint64_t>(index),
            .host = "host",
            .free_memory_bytes = free};
  }
  absl::Status Check(const std::vector<Member>& servers, const std::vector<int>& places) const {
    return CheckRoom(partitions_, now_, plan::PlanTarget(partitions_, now_, places), servers,
                     service_);
  }

  PartitionMove Plan(const std::vector<Member>& servers, const std::vector<Member>& spares,
                     const std::vector<int>& places,
                     std::optional<int64_t> bytes = std::nullopt) const {
    WaveKey key{.places = places};
    if (bytes.has_value()) {
      key.pace = {.bytes = *bytes};
    }
    return PlanWave(key, partitions_, now_, servers, JoinersOf(servers, spares, places),
                    /*relocations=*/std::nullopt)
        .move;
  }

  std::vector<plan::PartitionSpec> partitions_;
  plan::ShardMap now_{.generation = 1, .servers = {}};
  plan::ServiceOptions service_;
};

TEST_F(PartitionMoveTest, WhatAServerHasAndWhatComesMustFit) {
  ASSERT_OK(Check({Server(0, 8 * kMost), Server(1, 4 * kMost)}, {0}));
  const absl::Status full = Check({Server(0, 8 * kEach - 1), Server(1, 4 * kMost)}, {0});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Describe(full),
              HasSubstr("server 0 (host host, pid 0) would need 192.0 MiB of memory, 96.0 MiB of "
                        "it for partitions that come, and its host had 192.0 MiB free"));
  // Nothing comes to those that are full already.
  ASSERT_OK(Check({Server(0, 1), Server(1, 1), Server(2, 4 * kMost)}, {0, 1, 2}));
  EXPECT_THAT(Describe(Check({Server(0, 1), Server(1, 1), Server(2, kEach)}, {0, 1, 2})),
              HasSubstr("server 2 (host host, pid 0) would need 48.0 MiB"));
  // Who does not say is not judged, nor who is not there.
  ASSERT_OK(Check({Server(0, 0), Server(1, 1)}, {0}));
  ASSERT_OK(Check({Server(0, 1), Server(1, 1)}, {0, 1, 2}));
}

// A backup of it holds nothing, and its weights are all that comes.
TEST_F(PartitionMoveTest, WhatIsFrozenNeedsRoomForItsWeightsAlone) {
  for (plan::PartitionSpec& partition : partitions_) {
    partition.frozen = true;
  }
  const int64_t weights = 4 * kElements * std::ssize(partitions_);
  ASSERT_OK(Check({Server(0, 2 * weights), Server(1, 2 * weights)}, {0}));
  EXPECT_EQ(Check({Server(0, weights / 2), Server(1, 1)}, {0}).code(),
            absl::StatusCode::kResourceExhausted);
  const plan::ShardMap backed = plan::WithBackups(partitions_, now_, std::vector<int>{0, 1}, 2);
  ASSERT_OK(CheckRoom(partitions_, now_, backed, {Server(0, 1), Server(1, 1)}, service_));
}

TEST_F(PartitionMoveTest, InWavesWhatIsFrozenCountsToo) {
  for (plan::PartitionSpec& partition : partitions_) {
    partition.frozen = true;
  }
  const std::vector<Member> servers = {Server(0, 0), Server(1, 0)};
  const PartitionMove move = Plan(servers, {Server(2, 0)}, {0, 1, 2}, /*bytes=*/1);
  EXPECT_EQ(move.partitions, 1);
  EXPECT_GT(move.bytes_left, 0);
}

TEST_F(PartitionMoveTest, SourcesAreThoseThatHaveThem) {
  const std::vector<Member> servers = {Server(0, 0), Server(1, 0)};
  const PartitionMove move =
      Plan(servers, {Server(7, 0), Server(8, 0), Server(9, 0)}, PlacesToBe(servers, {}, 4));
  ASSERT_EQ(move.after.size(), 4U);
  EXPECT_EQ(move.after[2].index, 7);
  EXPECT_EQ(move.partitions, 4);
  std::set<int> come;
  for (const auto& [member, comes] : move.comes) {
    EXPECT_GE(member, 2);
    come.insert(comes.begin(), comes.end());
    size_t from_all = 0;
    for (const proto::PartitionSource& source : move.fetches.at(member).sources()) {
      from_all += static_cast<size_t>(source.partitions_size());
    }
    EXPECT_EQ(from_all, comes.size());
  }
  EXPECT_THAT(move.changed, ElementsAreArray(come));
  EXPECT_EQ(Imbalance(partitions_, move.map, plan::FirstServers(4)), 0);
  EXPECT_THAT(move.leavers, IsEmpty());
  EXPECT_TRUE(move.Joins(107) && move.Joins(108));
  EXPECT_FALSE(move.Joins(100) || move.Joins(109));
  EXPECT_EQ(move.bytes_left, 0);
}

TEST_F(PartitionMoveTest, AnyServerMayGoAndTheOthersMoveUp) {
  const std::vector<Member> servers = {Server(3, 0), Server(4, 0)};
  const auto check = [&](const std::vector<Member>& spares, int64_t wanted) {
    const std::vector<int> places = PlacesToBe(servers, {servers[0].incarnation}, wanted);
    PartitionMove move = Plan(servers, spares, places);
    EXPECT_THAT(move.leavers, ElementsAre(0));
    EXPECT_EQ(move.partitions, 4) << "those of the one that goes, and no others";
    for (const plan::PartitionSpec& partition : partitions_) {
      const Member& holder = move.after[static_cast<size_t>(move.map.primary(partition.id))];
      EXPECT_NE(holder.index, 3);
      if (now_.primary(partition.id) == 1) {
        EXPECT_EQ(holder.index, 4);
      }
    }
    return move;
  };
  EXPECT_EQ(check({}, 1).members.size(), 2U);
  // Its replacement gets what it had.
  const PartitionMove replaced = check({Server(9, 0)}, 2);
  EXPECT_TRUE(replaced.Joins(109));
  EXPECT_THAT(replaced.comes.at(2), ElementsAre(0, 2, 4, 6));
}

// A server comes with the first that it gets, and goes with the last that it has.
TEST_F(PartitionMoveTest, InWavesNoServerIsEmpty) {
  std::vector<Member> servers = {Server(0, 0), Server(1, 0), Server(2, 0)};
  std::vector<Member> spares = {Server(3, 0), Server(4, 0)};
  now_.servers[0] = {2};
  const std::set<uint64_t> leaving = {servers[1].incarnation};
  std::vector<size_t> sizes;
  int64_t left = 1;
  while (left > 0) {
    const PartitionMove move =
        Plan(servers, spares, PlacesToBe(servers, leaving, 4), 12 * kElements);
    EXPECT_EQ(move.partitions, 1);
    std::set<int> holders;
    for (const plan::PartitionSpec& partition : partitions_) {
      const Member& holder = move.after.at(static_cast<size_t>(move.map.primary(partition.id)));
      holders.insert(holder.index);
      const int from = now_.primary(partition.id);
      const bool moved = holder.index != servers[static_cast<size_t>(from)].index;
      EXPECT_EQ(moved, std::ranges::any_of(move.comes, [&](const auto& comes) {
                  return comes.second == std::vector<int>{partition.id};
                }));
    }
    EXPECT_EQ(holders.size(), move.after.size());
    sizes.push_back(holders.size());
    left = move.bytes_left;
    now_ = move.map;
    servers = move.after;
    std::erase_if(spares, [&](const Member& spare) { return holders.contains(spare.index); });
  }
  EXPECT_THAT(sizes, ElementsAre(4, 5, 5, 4, 4));
  EXPECT_TRUE(
      std::ranges::none_of(servers, [](const Member& member) { return member.index == 1; }));
}

TEST_F(PartitionMoveTest, WhatLaterWavesBringIsReservedWithTheFirst) {
  const std::vector<Member> servers = {Server(0, 0), Server(1, 0)};
  const std::vector<Member> spares = {Server(7, 0), Server(8, 0)};
  const std::vector<int> places = PlacesToBe(servers, {}, 4);
  const PartitionMove all = Plan(servers, spares, places);
  const PartitionMove wave = Plan(servers, spares, places, /*bytes=*/1);
  ASSERT_EQ(wave.reserves.size(), 1U);
  const auto& [taker, request] = *wave.reserves.begin();
  std::vector<int> reserved(request.partitions().begin(), request.partitions().end());
  EXPECT_GT(reserved.size(), wave.comes.at(taker).size());
  std::ranges::sort(reserved);
  EXPECT_THAT(all.reserves.at(taker).partitions(), ElementsAreArray(reserved));
}

// Who connected before it reaches what an earlier wave reserved, and nothing else.
TEST_F(PartitionMoveTest, WavesReachWhatEarlierOnesReserved) {
  PartitionMove wave = {.members = {Server(0, 0), Server(1, 0), Server(2, 0)}, .before = 3};
  for (const plan::PartitionSpec& partition : partitions_) {
    wave.givers[partition.id] = now_.servers[static_cast<size_t>(partition.id)];
  }
  const auto next = [&wave](std::map<int, std::vector<int>> comes,
                            std::map<int, std::vector<int>> follow) {
    wave.comes = std::move(comes);
    wave.follow = std::move(follow);
    return wave;
  };
  ReservedPlaces places;
  EXPECT_FALSE(places.Reach(next({{2, {0}}}, {{2, {1, 2}}})));
  EXPECT_TRUE(places.Reach(next({{2, {1}}}, {{2, {2}}})));
  EXPECT_FALSE(places.Reach(next({{2, {2}}}, {{2, {4}}}))) << "a wish that brings it another one";
  EXPECT_TRUE(places.Reach(next({{2, {4}}}, {})));
  EXPECT_FALSE(places.Reach(next({{2, {4}}}, {}))) << "it is here, and nothing else was reserved";

  EXPECT_FALSE(places.Reach(next({{2, {0}}}, {{2, {1, 3}}})));
  EXPECT_FALSE(places.Reach(next({{1, {2}}}, {}))) << "one that got nothing before";
  EXPECT_TRUE(places.Reach(next({{2, {1}}}, {{2, {3}}}))) << "what another got changes nothing";
  places.Clear();
  EXPECT_FALSE(places.Reach(next({{2, {3}}}, {})));

  EXPECT_FALSE(places.Reach(next({{1, {0}}}, {{1, {2, 4}}})));
  wave.givers[0] = {1};
  EXPECT_FALSE(places.Reach(next({{2, {0}}}, {})));
  EXPECT_FALSE(places.Reach(next({{1, {2}}}, {{1, {4}}}))) << "it may have let go of the region";
}

}  // namespace
}  // namespace shoal::server
