#include "core/job/shard_map_message.h"

namespace shoal::plan {

proto::ShardMap ToMessage(const ShardMap& map) {
  proto::ShardMap message;
  message.set_generation(map.generation);
  for (const std::vector<int>& servers : map.servers) {
    message.add_partitions()->mutable_servers()->Assign(servers.begin(), servers.end());
  }
  return message;
}

ShardMap FromMessage(const proto::ShardMap& message) {
  ShardMap map{.generation = message.generation(), .servers = {}};
  for (const proto::PartitionServers& partition : message.partitions()) {
    map.servers.emplace_back(partition.servers().begin(), partition.servers().end());
  }
  return map;
}

}  // namespace shoal::plan
