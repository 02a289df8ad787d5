#include "core/job/shard_map_message.h"

#include <algorithm>

namespace shoal::plan {

proto::ShardMap ToMessage(const ShardMap& map) {
  proto::ShardMap message;
  message.set_generation(map.generation);
  for (size_t id = 0; id < map.servers.size(); ++id) {
    const std::vector<int>& servers = map.servers[id];
    proto::PartitionServers& partition = *message.add_partitions();
    partition.mutable_servers()->Assign(servers.begin(), servers.end());
    if (!map.readers.empty() && map.readers[id] != servers.front()) {
      partition.set_reader(map.readers[id]);
    }
  }
  return message;
}

ShardMap FromMessage(const proto::ShardMap& message) {
  ShardMap map{.generation = message.generation(), .servers = {}};
  const bool apart =
      std::ranges::any_of(message.partitions(), &proto::PartitionServers::has_reader);
  for (const proto::PartitionServers& partition : message.partitions()) {
    map.servers.emplace_back(partition.servers().begin(), partition.servers().end());
    if (apart && !partition.servers().empty()) {
      map.readers.push_back(partition.has_reader() ? partition.reader() : partition.servers(0));
    }
  }
  return map;
}

}  // namespace shoal::plan
