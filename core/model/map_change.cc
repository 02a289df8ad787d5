#include "core/model/map_change.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/status.h"

namespace shoal::plan {
namespace {

// kGone: it has none.
int PlaceOf(int server, std::span<const int> places) {
  if (places.empty()) {
    return server;
  }
  const auto place = static_cast<size_t>(server);
  return server >= 0 && place < places.size() ? places[place] : MapChange::kGone;
}

// Two servers cannot have one place.
absl::Status CheckPlaces(const MapChange& change) {
  std::vector<int> taken;
  for (const int place : change.places) {
    if (place < MapChange::kGone) {
      return InvalidArgument("a server has place {}", place);
    }
    if (place != MapChange::kGone) {
      taken.push_back(place);
    }
  }
  std::ranges::sort(taken);
  const auto twice = std::ranges::adjacent_find(taken);
  return twice == taken.end() ? absl::OkStatus()
                              : InvalidArgument("two servers have place {}", *twice);
}

absl::Status CheckPartitions(const ShardMap& map, const MapChange& change) {
  int before = -1;
  for (const MapChange::Partition& partition : change.partitions) {
    if (partition.id < 0 || partition.id >= std::ssize(map.servers)) {
      return InvalidArgument("it changes partition {} of {}", partition.id, map.servers.size());
    }
    if (partition.id <= before) {
      return InvalidArgument("it changes partition {} after {}", partition.id, before);
    }
    before = partition.id;
    const Holders& holders = partition.servers;
    if (holders.empty() || std::ranges::min(holders) < 0) {
      return InvalidArgument("it puts partition {} on no server", partition.id);
    }
    if (std::ranges::find(holders, partition.reader) == holders.end()) {
      return InvalidArgument("partition {} is to be read from server {}, which does not hold it",
                             partition.id, partition.reader);
    }
  }
  return absl::OkStatus();
}

absl::Status Renumber(ShardMap& map, const MapChange& change) {
  size_t next = 0;  // of those that change
  for (size_t id = 0; id < map.servers.size(); ++id) {
    if (next < change.partitions.size() && change.partitions[next].id == static_cast<int>(id)) {
      ++next;
      continue;
    }
    for (int& holder : map.servers[id]) {
      holder = PlaceOf(holder, change.places);
      if (holder == MapChange::kGone) {
        return InvalidArgument("it leaves partition {} on a server that is gone", id);
      }
    }
    map.readers[id] = PlaceOf(map.readers[id], change.places);
  }
  return absl::OkStatus();
}

// Each partition has one, for as long as it is worked on.
void AddReaders(ShardMap& map) {
  if (map.readers.empty()) {
    for (const Holders& holders : map.servers) {
      map.readers.push_back(holders.front());
    }
  }
}

// As messages have it: none where all are primaries.
void DropReaders(ShardMap& map) {
  for (size_t id = 0; id < map.servers.size(); ++id) {
    if (map.readers[id] != map.servers[id].front()) {
      return;
    }
  }
  map.readers.clear();
}

}  // namespace

absl::StatusOr<ShardMap> Apply(ShardMap map, const MapChange& change) {
  if (std::ranges::any_of(map.servers, &Holders::empty) ||
      (!map.readers.empty() && map.readers.size() != map.servers.size())) {
    return InvalidArgument("the map known does not name a server of each partition");
  }
  const bool changes = !change.partitions.empty() || !change.places.empty();
  if (change.from != map.generation ||
      (changes ? change.to <= change.from : change.to < change.from)) {
    return InvalidArgument("it leads from generation {} to {}, the map known is of {}", change.from,
                           change.to, map.generation);
  }
  SHOAL_RETURN_IF_ERROR(CheckPlaces(change));
  SHOAL_RETURN_IF_ERROR(CheckPartitions(map, change));
  AddReaders(map);
  if (!change.places.empty()) {
    SHOAL_RETURN_IF_ERROR(Renumber(map, change));
  }
  for (const MapChange::Partition& partition : change.partitions) {
    map.servers[static_cast<size_t>(partition.id)] = partition.servers;
    map.readers[static_cast<size_t>(partition.id)] = partition.reader;
  }
  map.generation = change.to;
  DropReaders(map);
  return map;
}

}  // namespace shoal::plan
