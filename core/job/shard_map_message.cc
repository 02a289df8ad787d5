#include "core/job/shard_map_message.h"

#include <algorithm>

#include "core/base/status.h"

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

proto::MapChange ToMessage(const MapChange& change) {
  proto::MapChange message;
  message.set_from(change.from);
  message.set_to(change.to);
  message.mutable_places()->Assign(change.places.begin(), change.places.end());
  bool apart = false;
  for (const MapChange::Partition& partition : change.partitions) {
    message.add_partitions(partition.id);
    message.add_holders(static_cast<int>(partition.servers.size()));
    message.mutable_servers()->Add(partition.servers.begin(), partition.servers.end());
    message.add_readers(partition.reader);
    apart = apart || partition.reader != partition.servers.front();
  }
  if (!apart) {
    message.clear_readers();
  }
  return message;
}

absl::StatusOr<MapChange> FromMessage(const proto::MapChange& message) {
  MapChange change = {.from = message.from(),
                      .to = message.to(),
                      .places = {message.places().begin(), message.places().end()}};
  const int count = message.partitions_size();
  if (message.holders_size() != count ||
      (!message.readers().empty() && message.readers_size() != count)) {
    return InvalidArgument("it says of {} partitions how many servers {} have, and {} readers",
                           count, message.holders_size(), message.readers_size());
  }
  auto next = message.servers().begin();
  for (int i = 0; i < count; ++i) {
    const int holders = message.holders(i);
    if (holders < 1 || holders > message.servers().end() - next) {
      return InvalidArgument("it has no {} servers for partition {}", holders,
                             message.partitions(i));
    }
    MapChange::Partition& partition = change.partitions.emplace_back();
    partition.id = message.partitions(i);
    partition.servers.assign(next, next + holders);
    partition.reader = message.readers().empty() ? *next : message.readers(i);
    next += holders;
  }
  if (next != message.servers().end()) {
    return InvalidArgument("it has {} servers for no partition", message.servers().end() - next);
  }
  return change;
}

}  // namespace shoal::plan
