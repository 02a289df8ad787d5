// The shard map: which servers hold which partition. Its version is its generation; a push or get
// of another generation is refused by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "core/model/partition.h"

namespace shoal::plan {

// Server indices, primary first, then backups: few, and a map of a large model is copied often.
using Holders = absl::InlinedVector<int, 4>;

struct ShardMap {
  int64_t generation = 0;
  std::vector<Holders> servers;  // by partition id
  // By partition id: whom a client reads it from. Empty: primaries.
  std::vector<int> readers = {};

  int primary(int partition) const { return servers[static_cast<size_t>(partition)].front(); }
  int reader(int partition) const {
    return readers.empty() ? primary(partition) : readers[static_cast<size_t>(partition)];
  }
  bool operator==(const ShardMap&) const = default;
};

// Spreads partitions over servers so that bytes are as even as whole partitions allow (largest
// first, onto the least loaded), those that train and those that are frozen by themselves. Puts
// each unit's partitions on different servers where possible, so that a get of one unit reads from
// several at once. Deterministic.
ShardMap PlaceShards(const std::vector<PartitionSpec>& partitions, int servers, int64_t generation);

// Returns `map` with `replicas` holders of each partition, or one on each of these servers where
// there are fewer. Backups that are on one of them, and not its primary, stay unless that has more
// than its share. Others come to whoever backs up least of their primary, on another host than its
// other holders if there is one: `hosts` by server; empty: all differ. Deterministic.
ShardMap WithBackups(const std::vector<PartitionSpec>& partitions, ShardMap map,
                     std::span<const int> servers, int64_t replicas,
                     std::span<const std::string> hosts = {});

// Whom a client reads a partition from: of its holders one on the client's host, where there are
// some, else any. `hosts`: by server. Clients of different numbers spread over holders.
int ReaderOf(int partition, std::span<const int> holders, std::span<const std::string> hosts,
             const std::string& host, int client);
// Returns `map` with that reader for each partition.
ShardMap WithReaders(ShardMap map, std::span<const std::string> hosts, const std::string& host,
                     int client);

// Returns how many partitions have fewer holders.
int64_t Underreplicated(const ShardMap& map, int64_t replicas);

// Returns the ids of the partitions that `server` is a backup of, ascending.
std::vector<int> BackupsOf(const ShardMap& map, int server);

// Returns the ids of the partitions whose primary is `server`, ascending.
std::vector<int> PartitionsOf(const ShardMap& map, int server);
// Returns the partitions by primary, of so many servers.
std::vector<std::vector<PartitionSpec>> PartitionsByServer(
    const std::vector<PartitionSpec>& partitions, const ShardMap& map, int servers);

}  // namespace shoal::plan
