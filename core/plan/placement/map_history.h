// Remembers what changed between the last shard maps of a job, so that who knows one of them need
// not be told the whole of the newest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/model/map_change.h"

namespace shoal::plan {

class MapHistory {
 public:
  static constexpr size_t kMostChanges = 64;

  // After the map of generation `from` comes `now`, in which servers are at `places`, as MapChange
  // has them, and these partitions (ascending) have other holders.
  void Add(int64_t from, const ShardMap& now, std::vector<int> places, std::vector<int> partitions);

  // What leads from that generation to `now`, which was added last; nullopt: that is forgotten, as
  // the oldest changes are, where they are many or the whole map is not much larger.
  std::optional<MapChange> Since(int64_t generation, const ShardMap& now) const;

 private:
  struct Change {
    int64_t from = 0;
    int64_t to = 0;
    std::vector<int> places;
    std::vector<int> partitions;
  };

  std::deque<Change> changes_;
  size_t partitions_ = 0;  // of all
};

}  // namespace shoal::plan
