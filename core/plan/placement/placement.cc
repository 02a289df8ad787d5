#include "core/plan/placement/placement.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/check.h"
#include "core/base/testing/planted.h"

namespace shoal::plan {
namespace {

// Elements by server, of those and of whoever else holds some.
std::map<int, int64_t> LoadsOf(const std::vector<PartitionSpec>& partitions, const ShardMap& map,
                               std::span<const int> servers) {
  std::map<int, int64_t> loads;
  for (const int server : servers) {
    loads[server] = 0;
  }
  for (const PartitionSpec& partition : partitions) {
    loads[map.primary(partition.id)] += partition.count;
  }
  return loads;
}

class Placement {
 public:
  Placement(const std::vector<PartitionSpec>& partitions, std::span<const int> servers)
      : partitions_(partitions) {
    int units = 0;
    for (const PartitionSpec& partition : partitions) {
      units = std::max(units, partition.unit + 1);
    }
    for (const int server : servers) {
      at_[server].of_unit.resize(static_cast<size_t>(units));
    }
  }

  bool Has(int server) const { return at_.contains(server); }

  void Add(int server, const PartitionSpec& partition) {
    Server& at = at_[server];
    at.load += partition.count;
    at.held.push_back(partition.id);
    ++OfUnit(at, partition);
  }

  // Whoever has least, and among those least of its unit.
  Relocation AddToLeast(const PartitionSpec& partition) {
    const auto least = std::ranges::min_element(at_, [&](const auto& a, const auto& b) {
      return std::pair(a.second.load, OfUnit(a.second, partition)) <
             std::pair(b.second.load, OfUnit(b.second, partition));
    });
    Add(least->first, partition);
    return {partition.id, least->first};
  }

  void Balance(int64_t within, std::vector<Relocation>& relocations) {
    const auto less = [](const auto& a, const auto& b) { return a.second.load < b.second.load; };
    while (true) {
      const auto [least, most] = std::ranges::minmax_element(at_, less);
      const int64_t apart = most->second.load - least->second.load;
      if (apart <= within) {
        return;
      }
      const size_t chosen = Choose(most->second, least->second, apart);
      const PartitionSpec& partition = Spec(most->second.held[chosen]);
      most->second.load -= partition.count;
      --OfUnit(most->second, partition);
      most->second.held.erase(most->second.held.begin() + static_cast<std::ptrdiff_t>(chosen));
      Add(least->first, partition);
      relocations.push_back({partition.id, least->first});
    }
  }

 private:
  struct Server {
    int64_t load = 0;
    std::vector<int> held;
    std::vector<int> of_unit;  // partitions, by unit
  };

  const PartitionSpec& Spec(int id) const { return partitions_[static_cast<size_t>(id)]; }
  static int& OfUnit(Server& at, const PartitionSpec& partition) {
    return at.of_unit[static_cast<size_t>(partition.unit)];
  }
  static int OfUnit(const Server& at, const PartitionSpec& partition) {
    return at.of_unit[static_cast<size_t>(partition.unit)];
  }

  // What to give, by its place among those held: it halves the difference best.
  size_t Choose(const Server& most, const Server& least, int64_t apart) const {
    const auto rank = [&](int id) {
      const PartitionSpec& partition = Spec(id);
      return std::tuple(std::abs(apart - 2 * partition.count), OfUnit(least, partition), id);
    };
    const auto best = std::ranges::min_element(most.held, {}, rank);
    SHOAL_CHECK(best != most.held.end());
    return static_cast<size_t>(best - most.held.begin());
  }

  const std::vector<PartitionSpec>& partitions_;
  std::map<int, Server> at_;
};

// Adds what moves of the partitions of that kind.
void PlanKind(const std::vector<PartitionSpec>& partitions, const std::vector<PartitionSpec>& kind,
              const ShardMap& now, std::span<const int> servers,
              std::vector<Relocation>& relocations) {
  Placement placement(partitions, servers);
  std::vector<int> homeless;
  for (const PartitionSpec& partition : kind) {
    const int server = now.primary(partition.id);
    if (placement.Has(server)) {
      placement.Add(server, partition);
    } else {
      homeless.push_back(partition.id);
    }
  }
  const auto count = [&](int id) { return partitions[static_cast<size_t>(id)].count; };
  std::ranges::stable_sort(homeless, std::greater(), count);
  for (const int id : homeless) {
    relocations.push_back(placement.AddToLeast(partitions[static_cast<size_t>(id)]));
  }
  placement.Balance(LargestCount(kind) * (SHOAL_PLANTED("balanced-by-two") ? 2 : 1), relocations);
}

// That must move before these servers are balanced.
int64_t LeastElements(const std::vector<PartitionSpec>& partitions, const ShardMap& now,
                      std::span<const int> servers) {
  const int64_t largest = LargestCount(partitions);
  const std::map<int, int64_t> loads = LoadsOf(partitions, now, servers);
  int64_t total = 0;
  for (const auto& [server, load] : loads) {
    total += load;
  }
  // Where all are within the largest partition of each other, none is farther from the mean.
  const auto each = static_cast<int64_t>(servers.size());
  const int64_t above = (total + each - 1) / each + largest;
  const int64_t below = total / each - largest;
  int64_t out = 0;
  int64_t in = 0;
  for (const auto& [server, load] : loads) {
    const bool stays = std::ranges::find(servers, server) != servers.end();
    out += stays ? std::max<int64_t>(0, load - above) : load;
    in += stays ? std::max<int64_t>(0, below - load) : 0;
  }
  return std::max(out, in);
}

}  // namespace

std::vector<int> FirstServers(int64_t servers) {
  std::vector<int> first(static_cast<size_t>(servers));
  std::iota(first.begin(), first.end(), 0);
  return first;
}

std::vector<Relocation> PlanRelocations(const std::vector<PartitionSpec>& partitions,
                                        const ShardMap& now, std::span<const int> servers) {
  SHOAL_CHECK(!servers.empty());
  std::vector<Relocation> relocations;
  for (const bool frozen : {false, true}) {
    PlanKind(partitions, OfKind(partitions, frozen), now, servers, relocations);
  }
  return relocations;
}

ShardMap Relocate(const ShardMap& now, std::span<const Relocation> relocations) {
  ShardMap map = now;
  ++map.generation;
  for (const auto [partition, to] : relocations) {
    map.servers[static_cast<size_t>(partition)] = {to};
  }
  return map;
}

ShardMap PlanTarget(const std::vector<PartitionSpec>& partitions, const ShardMap& now,
                    std::span<const int> servers, int64_t replicas,
                    std::span<const std::string> hosts) {
  ShardMap map = now;
  for (Holders& holders : map.servers) {
    const auto stays = [&](int holder) {
      return std::ranges::find(servers, holder) != servers.end();
    };
    if (std::ranges::any_of(holders, stays)) {
      holders.erase(std::remove_if(holders.begin(), holders.end(), std::not_fn(stays)),
                    holders.end());
    }
  }
  for (const auto [partition, to] : PlanRelocations(partitions, map, servers)) {
    Holders& holders = map.servers[static_cast<size_t>(partition)];
    holders.erase(std::remove(holders.begin(), holders.end(), to), holders.end());
    holders.insert(holders.begin(), to);
  }
  ++map.generation;
  return WithBackups(partitions, std::move(map), servers, replicas, hosts);
}

int64_t MovedBytes(const std::vector<PartitionSpec>& partitions,
                   std::span<const Relocation> relocations) {
  int64_t moved = 0;
  for (const Relocation& relocation : relocations) {
    moved += partitions[static_cast<size_t>(relocation.partition)].moved_bytes();
  }
  return moved;
}

std::span<const Relocation> FirstOf(const std::vector<PartitionSpec>& partitions,
                                    std::span<const Relocation> relocations, int64_t bytes) {
  size_t first = 0;
  int64_t moved = 0;
  for (; first < relocations.size(); ++first) {
    moved += MovedBytes(partitions, relocations.subspan(first, 1));
    if (first > 0 && moved > bytes) {
      break;
    }
  }
  return relocations.first(first);
}

int64_t MovedBytes(const std::vector<PartitionSpec>& partitions, const ShardMap& from,
                   const ShardMap& to) {
  int64_t moved = 0;
  for (const PartitionSpec& partition : partitions) {
    const Holders& before = from.servers[static_cast<size_t>(partition.id)];
    const Holders& after = to.servers[static_cast<size_t>(partition.id)];
    const auto comes = [&](int server) {
      return std::ranges::find(before, server) == before.end();
    };
    moved += partition.moved_bytes() * (partition.frozen
                                            ? static_cast<int>(before.front() != after.front())
                                            : std::ranges::count_if(after, comes));
  }
  return moved;
}

int64_t LeastBytes(const std::vector<PartitionSpec>& partitions, const ShardMap& now,
                   std::span<const int> servers) {
  if (std::ranges::any_of(now.servers, [](const auto& holders) { return holders.size() > 1; })) {
    return 0;
  }
  int64_t least = 0;
  for (const bool frozen : {false, true}) {
    const std::vector<PartitionSpec> kind = OfKind(partitions, frozen);
    least += kind.empty() ? 0 : LeastElements(kind, now, servers) * kind.front().element_bytes();
  }
  return least;
}

}  // namespace shoal::plan
