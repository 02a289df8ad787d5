// Partitions: contiguous ranges of a unit's vector, the unit of placement, replication and
// migration. They depend only on the model and on partition_bytes, never on the number of servers,
// and are fixed for the life of a job.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/model_spec.h"

namespace shoal::plan {

// Of an element, where its partition moves to another server: its master weight and moments; of
// what is frozen its weight, out of the file that it was loaded from.
inline constexpr int64_t kMovedBytes = 12;
inline constexpr int64_t MovedBytes(bool frozen) { return frozen ? 4 : kMovedBytes; }

struct PartitionSpec {
  int id = 0;  // index into the job's list; partitions are numbered unit by unit
  int unit = 0;
  int64_t offset = 0;   // elements from the unit's start; a multiple of kPartitionAlignment
  int64_t count = 0;    // elements; a multiple of kTensorAlignment
  bool frozen = false;  // as its unit

  // Elements that have a master weight, moments and a sum of gradients.
  int64_t trained() const { return frozen ? 0 : count; }
  // What a server reads of it where it moves.
  int64_t moved_bytes() const { return count * MovedBytes(frozen); }

  bool operator==(const PartitionSpec&) const = default;
};

// In elements; makes a partition start at a cache line in every element type in use.
inline constexpr int64_t kPartitionAlignment = 64;

// Splits every unit into ranges of nearly equal size, none larger than partition_bytes counted in
// fp32 (4 bytes per element).
std::vector<PartitionSpec> BuildPartitions(const std::vector<UnitSpec>& units,
                                           int64_t partition_bytes);

// Returns the elements of the largest; 0: there is none.
int64_t LargestCount(std::span<const PartitionSpec> partitions);

// Returns those that are frozen, or those that train. Each kind is placed on servers by itself: it
// takes other memory and other traffic.
std::vector<PartitionSpec> OfKind(std::span<const PartitionSpec> partitions, bool frozen);

}  // namespace shoal::plan
