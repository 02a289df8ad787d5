#include "core/model/unit_shards.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"

namespace shoal::plan {

int64_t ShardElements(int64_t count, int ranks) {
  SHOAL_CHECK(count >= 0 && ranks > 0);
  return RoundUp((count + ranks - 1) / ranks, kPartitionAlignment);
}

ElementRange ShardOf(int64_t count, int rank, int ranks) {
  SHOAL_CHECK(rank >= 0 && rank < ranks);
  const int64_t shard = ShardElements(count, ranks);
  const int64_t first = std::min(count, rank * shard);
  return {.first = first, .count = std::min(count, first + shard) - first};
}

ElementRange WholePartitions(std::span<const PartitionSpec> partitions, int unit,
                             const ElementRange& range) {
  ElementRange whole{.first = range.first};
  for (const PartitionSpec& partition : partitions) {
    const int64_t end = partition.offset + partition.count;
    if (partition.unit == unit && range.count > 0 && partition.offset < range.end() &&
        end > range.first) {
      whole.first = std::min(whole.first, partition.offset);
      whole.count = end - whole.first;
    }
  }
  return whole;
}

std::vector<ElementRange> WorkerShards::whole() const {
  std::vector<ElementRange> ranges;
  for (const Unit& unit : units) {
    ranges.push_back(unit.whole);
  }
  return ranges;
}

WorkerShards ShardUnits(const std::vector<UnitSpec>& units,
                        std::span<const PartitionSpec> partitions, int rank, int ranks) {
  WorkerShards shards{.rank = rank, .ranks = ranks};
  for (const UnitSpec& unit : units) {
    const ElementRange own = ShardOf(unit.count, rank, ranks);
    shards.units.push_back({.elements = ShardElements(unit.count, ranks),
                            .own = own,
                            .whole = WholePartitions(partitions, unit.index, own)});
  }
  return shards;
}

}  // namespace shoal::plan
