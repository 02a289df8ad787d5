#include "core/model/partition.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"

namespace shoal::plan {

std::vector<PartitionSpec> BuildPartitions(const std::vector<UnitSpec>& units,
                                           int64_t partition_bytes) {
  const int64_t max_count = std::max<int64_t>(
      kPartitionAlignment, partition_bytes / 4 / kPartitionAlignment * kPartitionAlignment);
  std::vector<PartitionSpec> partitions;
  for (const UnitSpec& unit : units) {
    const int64_t pieces = std::max<int64_t>(1, (unit.count + max_count - 1) / max_count);
    const int64_t piece = RoundUp((unit.count + pieces - 1) / pieces, kPartitionAlignment);
    for (int64_t offset = 0; offset < unit.count; offset += piece) {
      partitions.push_back({.id = static_cast<int>(partitions.size()),
                            .unit = unit.index,
                            .offset = offset,
                            .count = std::min(piece, unit.count - offset)});
    }
  }
  return partitions;
}

std::vector<DecayRange> DecayRanges(const UnitSpec& unit, const PartitionSpec& partition) {
  SHOAL_CHECK(unit.index == partition.unit);
  std::vector<DecayRange> ranges;
  for (const TensorSpec& tensor : unit.tensors) {
    if (!tensor.decays()) {
      continue;
    }
    const int64_t begin = std::max(tensor.offset, partition.offset) - partition.offset;
    const int64_t end =
        std::min(tensor.offset + tensor.count(), partition.offset + partition.count) -
        partition.offset;
    if (begin >= end) {
      continue;
    }
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end});
    }
  }
  return ranges;
}

}  // namespace shoal::plan
