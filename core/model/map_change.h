// What changed between two shard maps of a job: a map of many partitions is large beside the few
// that move at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/shard_map.h"

namespace shoal::plan {

struct MapChange {
  struct Partition {
    int id = 0;
    Holders servers;
    int reader = 0;
    bool operator==(const Partition&) const = default;
  };

  int64_t from = 0;  // generations
  int64_t to = 0;
  // Where the servers of `from` are in `to`, by place; kGone: nowhere. Empty: it has the same.
  std::vector<int> places = {};
  std::vector<Partition> partitions = {};  // ascending ids

  static constexpr int kGone = -1;
  bool operator==(const MapChange&) const = default;
};

// Returns the map that the change leads to. InvalidArgument, saying why, where it does not fit to
// `map`: changes come over the network.
absl::StatusOr<ShardMap> Apply(ShardMap map, const MapChange& change);

}  // namespace shoal::plan
