// Which partitions change servers when servers come and go. Pure.
//
// Balanced means: the largest load of a server is above the smallest by the largest partition at
// most. Loads are in elements; a partition that moves takes its state along, kMovedBytes for each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/partition.h"
#include "core/model/shard_map.h"

namespace shoal::plan {

// Of an element: master weight and moments.
inline constexpr int64_t kMovedBytes = 12;

// Returns 0, 1, ... below `servers`.
std::vector<int> FirstServers(int64_t servers);

// Returns `now` with its partitions on these servers alone, balanced, as the next generation.
// What others hold goes to whoever has least, largest first; then the most loaded gives to the
// least loaded what brings the two nearest, until that is balanced. Spreads a unit over servers
// where it has a choice. Deterministic.
ShardMap PlanTarget(const std::vector<PartitionSpec>& partitions, const ShardMap& now,
                    std::span<const int> servers);

// Returns the bytes of partitions whose server differs.
int64_t MovedBytes(const std::vector<PartitionSpec>& partitions, const ShardMap& from,
                   const ShardMap& to);

// Returns what must move at least before these servers are balanced.
int64_t LeastBytes(const std::vector<PartitionSpec>& partitions, const ShardMap& now,
                   std::span<const int> servers);

}  // namespace shoal::plan
