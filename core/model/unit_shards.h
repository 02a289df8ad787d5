// How workers that exchange weights and gradients among themselves share a unit out: in equal
// shards, one for each rank, as collectives want them. The vector is padded for that; shards at its
// end may be short or empty. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/partition.h"

namespace shoal::plan {

// Elements [first, first + count) of a unit's vector.
struct ElementRange {
  int64_t first = 0;
  int64_t count = 0;

  int64_t end() const { return first + count; }
  bool operator==(const ElementRange&) const = default;
};

// Elements of each rank's shard of a unit of `count`, padding included: a multiple of
// kPartitionAlignment. All shards together are ranks times that.
int64_t ShardElements(int64_t count, int ranks);

// Without padding.
ElementRange ShardOf(int64_t count, int rank, int ranks);

// The unit's partitions that hold any of `range`, whole; an empty range where that is empty.
ElementRange WholePartitions(std::span<const PartitionSpec> partitions, int unit,
                             const ElementRange& range);

// One worker's, by unit.
struct WorkerShards {
  struct Unit {
    int64_t elements = 0;  // of each rank's shard, padding included
    ElementRange own;
    ElementRange whole;  // partitions that hold it
  };
  int rank = 0;
  int ranks = 1;
  std::vector<Unit> units;

  const Unit& of(int unit) const { return units[static_cast<size_t>(unit)]; }
  // Of all ranks' shards of the unit together.
  int64_t padded(int unit) const { return of(unit).elements * ranks; }
  std::vector<ElementRange> whole() const;
};
WorkerShards ShardUnits(const std::vector<UnitSpec>& units,
                        std::span<const PartitionSpec> partitions, int rank, int ranks);

}  // namespace shoal::plan
