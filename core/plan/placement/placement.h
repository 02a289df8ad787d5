// Which partitions change servers when servers come and go. Pure.
//
// Balanced means: the largest load of a server is above the smallest by the largest partition at
// most, of those that train and of those that are frozen. Loads are in elements; a partition that
// moves takes its state along, PartitionSpec::moved_bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/model/partition.h"
#include "core/model/shard_map.h"

namespace shoal::plan {

// Returns 0, 1, ... below `servers`.
std::vector<int> FirstServers(int64_t servers);

// A partition that is to change servers.
struct Relocation {
  int partition = 0;
  int to = 0;
  bool operator==(const Relocation&) const = default;
};

// Returns what brings the partitions to these servers alone, balanced; each moves once at most.
// What others hold goes to whoever has least, largest first; then the most loaded gives to the
// least loaded what brings the two nearest, until that is balanced. Spreads a unit over servers
// where it has a choice. Deterministic; and what is planned anew once the first of them are done is
// the rest of them.
std::vector<Relocation> PlanRelocations(const std::vector<PartitionSpec>& partitions,
                                        const ShardMap& now, std::span<const int> servers);

// Returns `now` with those done, as the next generation.
ShardMap Relocate(const ShardMap& now, std::span<const Relocation> relocations);

// Does all of it, for `replicas` holders of each partition: a partition whose primary is on none of
// these servers goes to a backup of it where there is one, and who gives a partition away backs it
// up where one more is needed. `hosts` as WithBackups has it.
ShardMap PlanTarget(const std::vector<PartitionSpec>& partitions, const ShardMap& now,
                    std::span<const int> servers, int64_t replicas = 1,
                    std::span<const std::string> hosts = {});

// Returns the bytes of those partitions.
int64_t MovedBytes(const std::vector<PartitionSpec>& partitions,
                   std::span<const Relocation> relocations);

// Returns the first of them: as many as have `bytes` at most, and one where that is none.
std::span<const Relocation> FirstOf(const std::vector<PartitionSpec>& partitions,
                                    std::span<const Relocation> relocations, int64_t bytes);

// Returns the bytes of partitions at servers that had none of their state before. A backup of what
// is frozen has none.
int64_t MovedBytes(const std::vector<PartitionSpec>& partitions, const ShardMap& from,
                   const ShardMap& to);

// Returns what must move at least before these servers are balanced. With backups that is nothing:
// who backs a partition up becomes its primary without a byte.
int64_t LeastBytes(const std::vector<PartitionSpec>& partitions, const ShardMap& now,
                   std::span<const int> servers);

}  // namespace shoal::plan
