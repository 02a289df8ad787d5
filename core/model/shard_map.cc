#include "core/model/shard_map.h"

#include <algorithm>
#include <numeric>

#include "core/base/check.h"

namespace shoal::plan {

ShardMap PlaceShards(const std::vector<PartitionSpec>& partitions, int servers,
                     int64_t generation) {
  SHOAL_CHECK(servers > 0);
  std::vector<size_t> order(partitions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return partitions[a].count > partitions[b].count; });
  const auto server_count = static_cast<size_t>(servers);
  std::vector<int64_t> load(server_count, 0);
  ShardMap map{.generation = generation,
               .servers = std::vector<std::vector<int>>(partitions.size())};
  for (const size_t index : order) {
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
