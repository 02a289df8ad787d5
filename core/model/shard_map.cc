#include "core/model/shard_map.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/check.h"

namespace shoal::plan {

ShardMap PlaceShards(const std::vector<PartitionSpec>& partitions, int servers,
                     int64_t generation) {
  SHOAL_CHECK(servers > 0);
  std::vector<size_t> order(partitions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return partitions[a].count > partitions[b].count; });
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t index) { return !partitions[index].frozen; });
  const auto server_count = static_cast<size_t>(servers);
  std::vector<int64_t> load(server_count, 0);
  ShardMap map{.generation = generation, .servers = std::vector<Holders>(partitions.size())};
  bool frozen = false;
  for (const size_t index : order) {
    if (partitions[index].frozen && !std::exchange(frozen, true)) {
      std::ranges::fill(load, 0);
    }
    // Among equally loaded servers it starts with one that depends on the partition, which spreads
    // a unit's partitions.
    size_t best = index % server_count;
    for (size_t step = 1; step < server_count; ++step) {
      const size_t candidate = (index + step) % server_count;
      if (load[candidate] < load[best]) {
        best = candidate;
      }
    }
    load[best] += partitions[index].count;
    map.servers[index] = {static_cast<int>(best)};
  }
  return map;
}

namespace {

// Where backups go, largest first.
class BackupPlaces {
 public:
  BackupPlaces(std::span<const int> servers, std::span<const std::string> hosts)
      : servers_(servers), hosts_(hosts) {}

  void Add(int primary, int backup, int64_t count) {
    load_[backup] += count;
    pairs_[{primary, backup}] += count;
  }
  int64_t load(int server) const { return At(load_, server); }

  // -1: there is no server left.
  int Best(const Holders& holders) const {
    int best = -1;
    for (const int server : servers_) {
      const bool holds = std::ranges::find(holders, server) != holders.end();
      if (!holds && (best < 0 || Rank(holders, server) < Rank(holders, best))) {
        best = server;
      }
    }
    return best;
  }

 private:
  template <typename Key>
  static int64_t At(const std::map<Key, int64_t>& of, const Key& key) {
    const auto found = of.find(key);
    return found == of.end() ? 0 : found->second;
  }
  std::tuple<bool, int64_t, int64_t, int> Rank(const Holders& holders, int server) const {
    const bool near = std::ranges::any_of(holders, [&](int holder) {
      return std::max(holder, server) < std::ssize(hosts_) &&
             hosts_[static_cast<size_t>(holder)] == hosts_[static_cast<size_t>(server)];
    });
    return {near, At(pairs_, std::pair(holders.front(), server)), load(server), server};
  }

  const std::span<const int> servers_;
  const std::span<const std::string> hosts_;
  std::map<int, int64_t> load_;                   // elements, by server
  std::map<std::pair<int, int>, int64_t> pairs_;  // elements, by primary and backup
};

void PlaceBackups(std::vector<PartitionSpec> order, ShardMap& map, std::span<const int> servers,
                  int64_t replicas, BackupPlaces places) {
  std::ranges::stable_sort(order, std::greater(), &PartitionSpec::count);
  int64_t total = 0;
  for (const PartitionSpec& partition : order) {
    total += partition.count * (replicas - 1);
  }
  const int64_t share = total / std::max<int64_t>(1, std::ssize(servers)) + LargestCount(order);
  for (const PartitionSpec& partition : order) {
    Holders& holders = map.servers[static_cast<size_t>(partition.id)];
    const Holders before = std::exchange(holders, {holders.front()});
    for (const int backup : std::span(before).subspan(1)) {
      const bool stays = std::ranges::find(servers, backup) != servers.end() &&
                         places.load(backup) + partition.count <= share;
      if (stays && std::ssize(holders) < replicas) {
        places.Add(holders.front(), backup, partition.count);
        holders.push_back(backup);
      }
    }
  }
  for (const PartitionSpec& partition : order) {
    Holders& holders = map.servers[static_cast<size_t>(partition.id)];
    while (std::ssize(holders) < std::min(replicas, std::ssize(servers))) {
      const int best = places.Best(holders);
      if (best < 0) {
        break;
      }
      places.Add(holders.front(), best, partition.count);
      holders.push_back(best);
    }
  }
}

}  // namespace

ShardMap WithBackups(const std::vector<PartitionSpec>& partitions, ShardMap map,
                     std::span<const int> servers, int64_t replicas,
                     std::span<const std::string> hosts) {
  for (const bool frozen : {false, true}) {
    PlaceBackups(OfKind(partitions, frozen), map, servers, replicas, BackupPlaces(servers, hosts));
  }
  return map;
}

int ReaderOf(int partition, std::span<const int> holders, std::span<const std::string> hosts,
             const std::string& host, int client) {
  const auto is_near = [&](int holder) { return hosts[static_cast<size_t>(holder)] == host; };
  const auto near = static_cast<size_t>(std::ranges::count_if(holders, is_near));
  size_t turn = (static_cast<size_t>(partition) + static_cast<size_t>(client)) %
                (near > 0 ? near : holders.size());
  for (const int holder : holders) {
    if ((near == 0 || is_near(holder)) && turn-- == 0) {
      return holder;
    }
  }
  return holders.front();
}

ShardMap WithReaders(ShardMap map, std::span<const std::string> hosts, const std::string& host,
                     int client) {
  map.readers.clear();
  for (int id = 0; id < static_cast<int>(map.servers.size()); ++id) {
    map.readers.push_back(ReaderOf(id, map.servers[static_cast<size_t>(id)], hosts, host, client));
  }
  return map;
}

int64_t Underreplicated(const ShardMap& map, int64_t replicas) {
  return std::ranges::count_if(
      map.servers, [replicas](const auto& holders) { return std::ssize(holders) < replicas; });
}

std::vector<int> BackupsOf(const ShardMap& map, int server) {
  std::vector<int> ids;
  for (size_t id = 0; id < map.servers.size(); ++id) {
    const std::span backups = std::span(map.servers[id]).subspan(1);
    if (std::ranges::find(backups, server) != backups.end()) {
      ids.push_back(static_cast<int>(id));
    }
  }
  return ids;
}

std::vector<int> PartitionsOf(const ShardMap& map, int server) {
  std::vector<int> ids;
  for (size_t id = 0; id < map.servers.size(); ++id) {
    if (map.primary(static_cast<int>(id)) == server) {
      ids.push_back(static_cast<int>(id));
    }
  }
  return ids;
}

std::vector<std::vector<PartitionSpec>> PartitionsByServer(
    const std::vector<PartitionSpec>& partitions, const ShardMap& map, int servers) {
  std::vector<std::vector<PartitionSpec>> held(static_cast<size_t>(servers));
  for (const PartitionSpec& partition : partitions) {
    held[static_cast<size_t>(map.primary(partition.id))].push_back(partition);
  }
  return held;
}

}  // namespace shoal::plan
