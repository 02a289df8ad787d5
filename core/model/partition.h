// Partitions: contiguous ranges of a unit's vector, the unit of placement, replication and
// migration. They depend only on the model and on partition_bytes, never on the number of servers,
// and are fixed for the life of a job.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/model/model_spec.h"

namespace shoal::plan {

struct PartitionSpec {
  int id = 0;  // index into the job's list; partitions are numbered unit by unit
  int unit = 0;
  int64_t offset = 0;   // elements from the unit's start; a multiple of kPartitionAlignment
  int64_t count = 0;    // elements; a multiple of kTensorAlignment
  bool frozen = false;  // as its unit
  Moments moments = {};
  int64_t nf4_bytes = 0;  // of its weights on the wire, where its unit is in NF4

  // Elements that have a master weight, moments and a sum of gradients.
  int64_t trained() const { return frozen ? 0 : count; }
  // Of its weights where they are published, sent and fetched.
  int64_t wire_bytes(DType wire_type) const {
    return nf4_bytes > 0 ? nf4_bytes : count * SizeOf(wire_type);
  }
  // Arrays of moments that it has.
  int moment_arrays() const { return frozen ? 0 : moments.arrays; }
  // The fp32 state of an element, as it is written to files and sent to other servers: its master
  // weight and moments; of what is frozen its weight.
  int64_t element_bytes() const { return 4 * (1 + int64_t{moment_arrays()}); }
  // What a server reads of it where it moves.
  int64_t moved_bytes() const { return count * element_bytes(); }
  // What it takes of a server that backs it up: master weight, moments and gradient.
  int64_t backup_bytes() const {
    return 8 * trained() + moment_arrays() * moments.ArrayBytes(count);
  }

  bool operator==(const PartitionSpec&) const = default;
};

// In elements; makes a partition start at a cache line in every element type in use.
inline constexpr int64_t kPartitionAlignment = 64;

// Splits every unit that servers have into ranges of nearly equal size, none larger than
// partition_bytes counted in fp32 (4 bytes per element).
std::vector<PartitionSpec> BuildPartitions(const std::vector<UnitSpec>& units,
                                           int64_t partition_bytes);

// Returns the elements of the largest; 0: there is none.
int64_t LargestCount(std::span<const PartitionSpec> partitions);

// Returns what the weights of each unit take on the wire.
std::vector<int64_t> WireBytes(std::span<const UnitSpec> units,
                               std::span<const PartitionSpec> partitions, DType wire_type);

// Returns those that are frozen, or those that train. Each kind is placed on servers by itself: it
// takes other memory and other traffic.
std::vector<PartitionSpec> OfKind(std::span<const PartitionSpec> partitions, bool frozen);

}  // namespace shoal::plan
