#include "core/model/partition.h"

#include <algorithm>
#include <iterator>

#include "core/base/bytes.h"
#include "core/model/nf4_partition.h"

namespace shoal::plan {

std::vector<PartitionSpec> BuildPartitions(const std::vector<UnitSpec>& units,
                                           int64_t partition_bytes) {
  const int64_t max_count = std::max<int64_t>(
      kPartitionAlignment, partition_bytes / 4 / kPartitionAlignment * kPartitionAlignment);
  std::vector<PartitionSpec> partitions;
  for (const UnitSpec& unit : units) {
    if (unit.from_files) {
      continue;
    }
    const int64_t pieces = std::max<int64_t>(1, (unit.count + max_count - 1) / max_count);
    const int64_t piece = RoundUp((unit.count + pieces - 1) / pieces, kPartitionAlignment);
    for (int64_t offset = 0; offset < unit.count; offset += piece) {
      partitions.push_back({.id = static_cast<int>(partitions.size()),
                            .unit = unit.index,
                            .offset = offset,
                            .count = std::min(piece, unit.count - offset),
                            .frozen = unit.frozen,
                            .moments = unit.moments});
      if (unit.nf4) {
        PartitionSpec& last = partitions.back();
        last.nf4_bytes = Nf4Partition(unit, last.offset, last.count).bytes();
      }
    }
  }
  return partitions;
}

int64_t LargestCount(std::span<const PartitionSpec> partitions) {
  int64_t largest = 0;
  for (const PartitionSpec& partition : partitions) {
    largest = std::max(largest, partition.count);
  }
  return largest;
}

std::vector<int64_t> WireBytes(std::span<const UnitSpec> units,
                               std::span<const PartitionSpec> partitions, DType wire_type) {
  std::vector<int64_t> bytes(units.size(), 0);
  for (const PartitionSpec& partition : partitions) {
    bytes[static_cast<size_t>(partition.unit)] += partition.wire_bytes(wire_type);
  }
  return bytes;
}

std::vector<PartitionSpec> OfKind(std::span<const PartitionSpec> partitions, bool frozen) {
  std::vector<PartitionSpec> of_kind;
  std::ranges::copy_if(partitions, std::back_inserter(of_kind),
                       [frozen](const PartitionSpec& p) { return p.frozen == frozen; });
  return of_kind;
}

}  // namespace shoal::plan
