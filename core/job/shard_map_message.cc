#include "core/job/shard_map_message.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace shoal::plan {

proto::ShardMap ToMessage(const ShardMap& map) {
  proto::ShardMap message;
  message.set_generation(map.generation);
  const auto has_one = [](const Holders& servers) { return servers.size() == 1; };
  const auto primary = [](const Holders& servers) { return servers.front(); };
  if (std::ranges::all_of(map.servers, has_one)) {
    message.mutable_servers()->Resize(static_cast<int>(map.servers.size()), 0);
    std::ranges::transform(map.servers, message.mutable_servers()->begin(), primary);
  } else {
    for (const Holders& servers : map.servers) {
      message.mutable_servers()->Add(servers.begin(), servers.end());
    }
    for (const Holders& servers : map.servers) {
      message.add_holders(static_cast<int>(servers.size()));
    }
  }
  if (!std::ranges::equal(map.readers, map.servers, {}, {}, primary)) {
    message.mutable_readers()->Assign(map.readers.begin(), map.readers.end());
  }
  return message;
}

ShardMap FromMessage(const proto::ShardMap& message) {
  ShardMap map{.generation = message.generation(),
               .servers = {},
               .readers = {message.readers().begin(), message.readers().end()}};
  const bool one_each = message.holders().empty();
  map.servers.resize(
      static_cast<size_t>(one_each ? message.servers_size() : message.holders_size()));
  auto next = message.servers().begin();
  for (size_t id = 0; id < map.servers.size(); ++id) {
    const int count = one_each ? 1 : message.holders(static_cast<int>(id));
    if (count < 0 || count > message.servers().end() - next) {
      break;
    }
    map.servers[id].assign(next, next + count);
    next += count;
  }
  return map;
}

proto::MapChange ToMessage(const MapChange& change) {
  proto::MapChange message;
  message.set_from(change.from);
  message.set_to(change.to);
  message.mutable_places()->Assign(change.places.begin(), change.places.end());
  bool apart = false;
  bool one_each = true;
  int before = 0;
  for (const MapChange::Partition& partition : change.partitions) {
    message.add_partitions(partition.id - std::exchange(before, partition.id));
    message.add_holders(static_cast<int>(partition.servers.size()));
    message.mutable_servers()->Add(partition.servers.begin(), partition.servers.end());
    message.add_readers(partition.reader);
    apart = apart || partition.reader != partition.servers.front();
    one_each = one_each && partition.servers.size() == 1;
  }
  if (!apart) {
    message.clear_readers();
  }
  if (one_each) {
    message.clear_holders();
  }
  return message;
}

absl::StatusOr<MapChange> FromMessage(const proto::MapChange& message) {
  MapChange change = {.from = message.from(),
                      .to = message.to(),
                      .places = {message.places().begin(), message.places().end()}};
  const int count = message.partitions_size();
  const bool one_each = message.holders().empty();
  if ((!one_each && message.holders_size() != count) ||
      (!message.readers().empty() && message.readers_size() != count)) {
    return InvalidArgument("it says of {} partitions how many servers {} have, and {} readers",
                           count, message.holders_size(), message.readers_size());
  }
  auto next = message.servers().begin();
  uint32_t id = 0;  // wraps, where that is not so: Apply knows the ids that there are
  for (int i = 0; i < count; ++i) {
    id += static_cast<uint32_t>(message.partitions(i));
    const int holders = one_each ? 1 : message.holders(i);
    if (holders < 1 || holders > message.servers().end() - next) {
      return InvalidArgument("it has no {} servers for partition {}", holders, id);
    }
    MapChange::Partition& partition = change.partitions.emplace_back();
    partition.id = static_cast<int>(id);
    partition.servers.assign(next, next + holders);
    partition.reader = message.readers().empty() ? *next : message.readers(i);
    next += holders;
  }
  if (next != message.servers().end()) {
    return InvalidArgument("it has {} servers for no partition", message.servers().end() - next);
  }
  return change;
}

std::string ToBytes(const MapChange& change) { return ToMessage(change).SerializeAsString(); }

absl::StatusOr<MapChange> ChangeFromBytes(const std::string& bytes) {
  proto::MapChange message;
  if (!message.ParseFromString(bytes)) {
    return InvalidArgument("a change of the shard map of {} bytes cannot be read", bytes.size());
  }
  return FromMessage(message);
}

std::string ToBytes(ShardMap map) {
  map.generation = 0;
  return ToMessage(map).SerializeAsString();
}

ShardMap MapFromBytes(const std::string& bytes, int64_t generation) {
  proto::ShardMap message;
  ShardMap map = message.ParseFromString(bytes) ? FromMessage(message) : ShardMap();
  map.generation = generation;
  return map;
}

}  // namespace shoal::plan
