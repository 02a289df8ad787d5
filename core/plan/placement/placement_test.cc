#include "core/plan/placement/placement.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <span>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

// Of an element: its master weight and two moments.
constexpr int64_t kMovedBytes = 12;

// One unit for every eight.
std::vector<PartitionSpec> Partitions(const std::vector<int64_t>& counts) {
  std::vector<PartitionSpec> partitions;
  for (size_t id = 0; id < counts.size(); ++id) {
    partitions.push_back({.id = static_cast<int>(id),
                          .unit = static_cast<int>(id / 8),
                          .offset = 0,
                          .count = counts[id]});
  }
  return partitions;
}

std::vector<int> Servers(int count) {
  std::vector<int> servers;
  for (int server = 0; server < count; ++server) {
    servers.push_back(server);
  }
  return servers;
}

// By how much the most loaded of those is above the least loaded.
int64_t Imbalance(const std::vector<PartitionSpec>& partitions, const ShardMap& map,
                  const std::vector<int>& servers) {
  std::vector<int64_t> loads;
  for (const int server : servers) {
    loads.push_back(0);
    for (const int id : PartitionsOf(map, server)) {
      loads.back() += partitions[static_cast<size_t>(id)].count;
    }
  }
  const auto [least, most] = std::ranges::minmax(loads);
  return most - least;
}

int64_t Largest(const std::vector<PartitionSpec>& partitions) {
  return std::ranges::max_element(partitions, {}, &PartitionSpec::count)->count;
}

// The least that any balanced placement moves.
int64_t SearchAll(const std::vector<PartitionSpec>& partitions, const ShardMap& now,
                  const std::vector<int>& servers) {
  int64_t best = std::numeric_limits<int64_t>::max();
  ShardMap map = now;
  const std::function<void(size_t)> place = [&](size_t id) {
    if (id == partitions.size()) {
      if (Imbalance(partitions, map, servers) <= Largest(partitions)) {
        best = std::min(best, MovedBytes(partitions, now, map));
      }
      return;
    }
    for (const int server : servers) {
      map.servers[id] = {server};
      place(id + 1);
    }
  };
  place(0);
  return best;
}

// Of those partitions alone.
ShardMap Holding(ShardMap map, const std::vector<PartitionSpec>& partitions) {
  std::vector<Holders> holders(map.servers.size(), {-1});
  for (const PartitionSpec& partition : partitions) {
    holders[static_cast<size_t>(partition.id)] = map.servers[static_cast<size_t>(partition.id)];
  }
  map.servers = holders;
  return map;
}

void ExpectPlaced(const std::vector<PartitionSpec>& partitions, const ShardMap& target,
                  const std::vector<int>& servers) {
  ASSERT_EQ(target.servers.size(), partitions.size());
  for (const PartitionSpec& partition : partitions) {
    EXPECT_TRUE(std::ranges::find(servers, target.primary(partition.id)) != servers.end());
  }
  EXPECT_LE(Imbalance(partitions, target, servers), Largest(partitions));
}

TEST(PlanTarget, MovesAsLittleAsASearchOfAllPlacements) {
  Random random(1);
  for (int round = 0; round < 40; ++round) {
    const auto partitions =
        Partitions(std::vector<int64_t>(4 + random.Below(5), 64));  // all as large
    const int before = 1 + static_cast<int>(random.Below(4));
    const std::vector<int> after = Servers(1 + static_cast<int>(random.Below(4)));
    const ShardMap now = PlaceShards(partitions, before, 3);
    const ShardMap target = PlanTarget(partitions, now, after);
    ExpectPlaced(partitions, target, after);
    EXPECT_EQ(target.generation, 4);
    EXPECT_EQ(MovedBytes(partitions, now, target), SearchAll(partitions, now, after))
        << before << " to " << after.size() << " with " << partitions.size();
  }
}

// Of uneven ones no rule that looks at one at a time finds the least always.
TEST(PlanTarget, OfUnevenPartitionsMovesAtMostOneMoreThanNeedBe) {
  Random random(2);
  for (int round = 0; round < 40; ++round) {
    std::vector<int64_t> counts(4 + random.Below(5));
    std::ranges::generate(counts, [&] { return 1 + static_cast<int64_t>(random.Below(100)); });
    const auto partitions = Partitions(counts);
    const ShardMap now = PlaceShards(partitions, 1 + static_cast<int>(random.Below(4)), 1);
    const std::vector<int> after = Servers(1 + static_cast<int>(random.Below(4)));
    const ShardMap target = PlanTarget(partitions, now, after);
    ExpectPlaced(partitions, target, after);
    const int64_t least = SearchAll(partitions, now, after);
    EXPECT_LE(LeastBytes(partitions, now, after), least);
    EXPECT_LE(MovedBytes(partitions, now, target), least + Largest(partitions) * kMovedBytes);
  }
}

TEST(PlanTarget, StaysNearTheLeastFromSizeToSize) {
  // Blocks of 20 partitions of which the last is smaller, as BuildPartitions cuts them.
  std::vector<int64_t> counts;
  for (int block = 0; block < 16; ++block) {
    counts.insert(counts.end(), 19, 4096);
    counts.push_back(1024);
  }
  const auto partitions = Partitions(counts);
  ShardMap now = PlaceShards(partitions, 2, 1);
  for (const int size : {8, 3, 4, 16, 1, 2, 15, 7}) {
    const std::vector<int> servers = Servers(size);
    const ShardMap target = PlanTarget(partitions, now, servers);
    ExpectPlaced(partitions, target, servers);
    const int64_t least = LeastBytes(partitions, now, servers);
    EXPECT_LE(MovedBytes(partitions, now, target), least + least / 20 + size * 4096 * kMovedBytes)
        << "to " << size;
    now = target;
  }
}

TEST(PlanTarget, ABalancedPlacementStays) {
  const auto partitions = Partitions(std::vector<int64_t>(37, 128));
  const ShardMap now = PlaceShards(partitions, 5, 1);
  const ShardMap target = PlanTarget(partitions, now, Servers(5));
  EXPECT_EQ(target.servers, now.servers);
  EXPECT_EQ(LeastBytes(partitions, now, Servers(5)), 0);
}

TEST(PlanTarget, ServersAreNamedNotCounted) {
  const auto partitions = Partitions(std::vector<int64_t>(40, 64));
  const ShardMap now = PlaceShards(partitions, 4, 1);
  const std::vector<int> servers = {0, 2, 3, 9};  // 1 leaves, 9 comes
  const ShardMap target = PlanTarget(partitions, now, servers);
  ExpectPlaced(partitions, target, servers);
  EXPECT_EQ(MovedBytes(partitions, now, target), 10 * 64 * kMovedBytes);
  EXPECT_EQ(LeastBytes(partitions, now, servers), 10 * 64 * kMovedBytes);
}

TEST(PlanTarget, SpreadsAUnitOverServers) {
  const auto partitions = Partitions(std::vector<int64_t>(64, 64));  // 8 units of 8
  const ShardMap target = PlanTarget(partitions, PlaceShards(partitions, 2, 1), Servers(8));
  for (int unit = 0; unit < 8; ++unit) {
    std::set<int> holders;
    for (int id = unit * 8; id < unit * 8 + 8; ++id) {
      holders.insert(target.primary(id));
    }
    EXPECT_GE(holders.size(), 6u) << "unit " << unit;
  }
}

TEST(PlanTarget, PlansAModelOf70B) {
  const auto partitions = Partitions(std::vector<int64_t>(66'700, int64_t{1} << 20));
  const ShardMap now = PlaceShards(partitions, 64, 1);
  const ShardMap target = PlanTarget(partitions, now, Servers(128));
  ExpectPlaced(partitions, target, Servers(128));
  const int64_t least = LeastBytes(partitions, now, Servers(128));
  EXPECT_LE(MovedBytes(partitions, now, target), least + least / 20);
}

// Each kind moves and is backed up as if the other were not there, whatever size that has.
TEST(PlanTarget, BalancesWhatTrainsAndWhatIsFrozenByThemselves) {
  Random random(5);
  for (int round = 0; round < 40; ++round) {
    auto partitions = Partitions(std::vector<int64_t>(20 + random.Below(20), 64));
    for (PartitionSpec& partition : partitions) {
      partition.frozen = random.Below(2) == 0;
    }
    const ShardMap now = PlaceShards(partitions, 2 + static_cast<int>(random.Below(3)), 1);
    const std::vector<int> servers = Servers(2 + static_cast<int>(random.Below(4)));
    const ShardMap alone = PlanTarget(partitions, now, servers);
    int64_t moved = 0;
    for (const bool frozen : {false, true}) {
      const std::vector<PartitionSpec> kind = OfKind(partitions, frozen);
      ASSERT_LE(Imbalance(partitions, Holding(alone, kind), servers), 64) << "frozen " << frozen;
      std::vector<PartitionSpec> others = partitions;
      for (PartitionSpec& partition : others) {
        partition.count = partition.frozen == frozen ? 64 : 16 * 1024;
      }
      const ShardMap target = PlanTarget(partitions, now, servers, /*replicas=*/2);
      const ShardMap beside = PlanTarget(others, now, servers, /*replicas=*/2);
      EXPECT_EQ(Holding(target, kind).servers, Holding(beside, kind).servers);
      for (const PartitionSpec& partition : kind) {
        moved +=
            alone.primary(partition.id) != now.primary(partition.id) ? (frozen ? 4 : 12) * 64 : 0;
      }
    }
    EXPECT_EQ(MovedBytes(partitions, now, alone), moved);
    EXPECT_LE(LeastBytes(partitions, now, servers), moved);
  }
}

TEST(FirstOf, CountsWhatIsFrozenByItsWeights) {
  std::vector<PartitionSpec> partitions = Partitions({4, 4, 4});
  partitions[1].frozen = partitions[2].frozen = true;
  const std::vector<Relocation> all = {{0, 1}, {1, 1}, {2, 1}};
  EXPECT_EQ(MovedBytes(partitions, all), 4 * (12 + 4 + 4));
  EXPECT_EQ(FirstOf(partitions, all, 4 * 12).size(), 1U);
  EXPECT_EQ(FirstOf(partitions, all, 4 * 16).size(), 2U);
}

TEST(FirstOf, IsWhatFitsAndOneAtLeast) {
  const std::vector<PartitionSpec> partitions = Partitions({5, 3, 2, 7});
  const std::vector<Relocation> all = {{0, 1}, {1, 1}, {3, 1}};
  const auto first = [&](int64_t elements) {
    return FirstOf(partitions, all, elements * kMovedBytes).size();
  };
  EXPECT_EQ(first(0), 1U);
  EXPECT_EQ(first(7), 1U);
  EXPECT_EQ(first(8), 2U);
  EXPECT_EQ(first(1000), 3U);
  EXPECT_TRUE(FirstOf(partitions, {}, 100).empty());
}

// So waves need no memory of each other.
TEST(PlanRelocations, TheRestPlannedAnewAfterAnyOfTheFirstIsTheSame) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> counts(4 + random.Below(40));
    std::ranges::generate(counts, [&] { return 1 + static_cast<int64_t>(random.Below(9)); });
    const auto partitions = Partitions(counts);
    const ShardMap now = PlaceShards(partitions, 1 + static_cast<int>(random.Below(5)), 1);
    std::vector<int> servers = Servers(2 + static_cast<int>(random.Below(5)));
    servers.erase(servers.begin() + static_cast<int>(random.Below(servers.size())));
    const std::vector<Relocation> all = PlanRelocations(partitions, now, servers);
    std::set<int> moved;
    for (const Relocation& relocation : all) {
      EXPECT_TRUE(moved.insert(relocation.partition).second) << "each once";
    }
    for (size_t first = 0; first <= all.size(); ++first) {
      const std::span<const Relocation> done = std::span(all).first(first);
      const std::vector<Relocation> rest =
          PlanRelocations(partitions, Relocate(now, done), servers);
      ASSERT_TRUE(std::ranges::equal(rest, std::span(all).subspan(first)));
    }
  }
}

}  // namespace
}  // namespace shoal::plan
