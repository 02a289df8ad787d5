// How workers that exchange weights and gradients among themselves divide a unit: into equal
// shards, one per rank, as collectives need. The vector is padded for that; shards at its end may
// be short or empty. Pure.
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

// Returns the elements of each rank's shard of a unit of `count`, including padding: a multiple of
// kPartitionAlignment. All shards together have ranks times that.
int64_t ShardElements(int64_t count, int ranks);

// Without padding.
ElementRange ShardOf(int64_t count, int rank, int ranks);

// Returns the unit's partitions that hold any of `range`, whole; empty if `range` is empty.
ElementRange WholePartitions(std::span<const PartitionSpec> partitions, int unit,
                             const ElementRange& range);

// One worker's shards, by unit.
struct WorkerShards {
  struct Unit {
    int64_t elements = 0;  // of each rank's shard, including padding
    ElementRange own;
    ElementRange whole;  // partitions that hold the shard
  };
  int rank = 0;
  int ranks = 1;
  std::vector<Unit> units;

  const Unit& of(int unit) const { return units[static_cast<size_t>(unit)]; }
  // Elements of all ranks' shards of the unit together.
  int64_t padded(int unit) const { return of(unit).elements * ranks; }
  std::vector<ElementRange> whole() const;
};
WorkerShards ShardUnits(const std::vector<UnitSpec>& units,
                        std::span<const PartitionSpec> partitions, int rank, int ranks);

}  // namespace shoal::plan
