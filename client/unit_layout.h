// Says which server has which partitions of each unit. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/model_spec.h"
#include "core/model/nf4_partition.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/model/unit_shards.h"

namespace shoal::client {

// The part of a unit at one server, which is read there or pushed there.
struct UnitPiece {
  int server = 0;
  std::vector<int> partitions;  // ascending
};

struct UnitLayout {
  std::string name;             // "block.3"
  int64_t count = 0;            // elements, of its range
  bool frozen = false;          // of version 0 forever
  bool from_files = false;      // frozen, and at no server
  int64_t nf4_bytes = 0;        // of all its partitions as they are read, where they are in NF4
  std::vector<int> partitions;  // ascending: the order in the vector
  std::vector<UnitPiece> pieces;
};

// A partition in NF4, and the byte of its unit's at which it lies once it is read.
struct Nf4Piece {
  plan::Nf4Partition partition;
  int64_t at = 0;
};

struct Layout {
  std::vector<UnitLayout> units;
  std::vector<plan::PartitionSpec> partitions;  // with offsets in the unit's range
  std::map<int, Nf4Piece> nf4;                  // by partition
  // By partition.
  std::vector<plan::Holders> holders;  // who has it, the one that it is pushed to first
  std::vector<int> reader;             // whom it is read from
  int servers = 0;
  int64_t generation = 0;

  const plan::PartitionSpec& partition(int id) const { return partitions[static_cast<size_t>(id)]; }
  const UnitLayout& unit(int index) const { return units[static_cast<size_t>(index)]; }
  int writer_of(int partition) const { return holders[static_cast<size_t>(partition)].front(); }
  int reader_of(int partition) const { return reader[static_cast<size_t>(partition)]; }
  // Whether a place that a server has told of the partition is right by the next map too: one that
  // goes, or takes another part, has it elsewhere when it comes back.
  bool KeepsPlace(int partition, int server, const Layout& next) const;
  int64_t largest_partition() const;  // elements, of those that are pushed
};

// `ranges`: by unit, the range of whole partitions (plan::WholePartitions) that stands for the
// unit; its elements count from there. Empty: all of each.
//
// InvalidArgument if the shard map belongs to another set of partitions or names a missing server
// (map and addresses come from the coordinator, units and partitions from the job), or if a range
// cuts a partition.
absl::StatusOr<Layout> MakeLayout(const std::vector<plan::UnitSpec>& units,
                                  const std::vector<plan::PartitionSpec>& partitions,
                                  const plan::ShardMap& map, int servers,
                                  std::span<const plan::ElementRange> ranges = {});

}  // namespace shoal::client
