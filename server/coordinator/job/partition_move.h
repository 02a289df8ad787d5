// Partitions of a job that change servers between two steps: who takes part, and what is to come
// from where. Pure; JobRun makes the calls.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/plan/placement/move_pace.h"
#include "core/plan/placement/placement.h"
#include "proto/server.pb.h"
#include "server/coordinator/members/membership.h"

namespace shoal::server {

// What is told of a map. It takes a while to make: that of a wave is made ahead of it.
struct MapForms {
  int64_t generation = -1;                        // of the map; -1: of none
  std::string bytes;                              // without it: SavedRun.shard_map
  std::vector<proto::HeldPartitions> by_servers;  // what each holds
};
MapForms FormsOf(const plan::ShardMap& map, size_t servers);

struct PartitionMove {
  // Those of the job, by their place in the map of before, then those that come.
  std::vector<Member> members;
  size_t before = 0;          // so many are the job's
  std::vector<Member> after;  // those of the job, by their place in `map`
  std::vector<int> leavers;   // members that are the job's no more
  plan::ShardMap map;
  MapForms forms;  // of `map`
  // Partitions, by who gets them, and who has them before: places in `members`.
  std::map<int, std::vector<int>> comes;
  std::map<int, std::vector<int>> backups;  // that come
  std::map<int, std::vector<int>> follow;   // that later waves bring, as it looks now; ascending
  std::map<int, plan::Holders> givers;      // by partition that comes, none of which is lost
  std::vector<int> changed;                 // partitions with other holders than before, ascending
  int64_t partitions = 0;
  int64_t bytes_left = 0;  // that are to move after it
  // What members that get some are asked, but for generation and version: to reserve what this wave
  // brings them, and then what follows, and to fetch it.
  std::map<int, proto::ReserveRequest> reserves;
  std::map<int, proto::FetchRequest> fetches;

  bool Joins(uint64_t incarnation) const;  // a member that is to come
};

// What servers have reserved for waves to come, and told clients when those connected.
class ReservedPlaces {
 public:
  // Takes note of a wave. Returns whether all that it brings was reserved by one before it, so that
  // whoever connected after that reaches it.
  bool Reach(const PartitionMove& wave);
  // A wave was given up: servers may have let go of what it reserved.
  void Clear() { by_server_.clear(); }

 private:
  std::map<uint64_t, std::vector<int>> by_server_;  // ascending, by incarnation
};

// Whether both are the same members, in the same order.
bool AreSame(const std::vector<Member>& a, const std::vector<Member>& b);

// Who is to hold a job's partitions, as places in `servers` and, above those, in a list of spares:
// the first `wanted` of those that stay, and of the spares.
std::vector<int> PlacesToBe(const std::vector<Member>& servers, const std::set<uint64_t>& leaving,
                            int64_t wanted);

// Those of these spares that are to hold some.
std::vector<Member> JoinersOf(const std::vector<Member>& servers, const std::vector<Member>& spares,
                              const std::vector<int>& places);

// What a wave follows from, together with the job's partitions.
struct WaveKey {
  int64_t generation = 0;              // of the map that says where they are
  std::vector<uint64_t> members;       // incarnations: the job's servers, then those that come
  std::vector<int> places;             // of those that are to hold them
  std::optional<plan::MovePace> pace;  // bounds the wave; nullopt: all moves at once
  int64_t ended = 0;                   // waves of the move before it

  bool operator==(const WaveKey&) const = default;
};

struct PlannedWave {
  WaveKey key;
  std::vector<plan::Relocation> relocations;  // all that is left, the wave's first
  int64_t bytes_left = 0;                     // that they move
  PartitionMove move;                         // whose map has yet to get its generation
};

// One wave: the first of `relocations`, which bring the partitions to those places (nullopt: they
// are planned), as many as the pace lets, and one at least. Members come with the first that they
// get, and go with the last that they have. `joiners`: those that are to come.
PlannedWave PlanWave(WaveKey key, const std::vector<plan::PartitionSpec>& partitions,
                     const plan::ShardMap& now, const std::vector<Member>& servers,
                     const std::vector<Member>& joiners,
                     std::optional<std::vector<plan::Relocation>> relocations);

// What brings partitions to the holders of `target`, by places in `servers` and, above those, in
// `joiners`. State of those that are lost (incarnations) is not to be had.
PartitionMove PlanMoveTo(const plan::ShardMap& now, plan::ShardMap target,
                         const std::vector<Member>& servers, const std::vector<Member>& joiners,
                         const std::vector<int>& places, const std::set<uint64_t>& lost,
                         int64_t bytes_left);

// Where the backups of a server take the gradients of a step from.
std::map<int, std::vector<proto::PartitionSource>> GradientSources(
    const plan::ShardMap& map, const std::vector<Member>& servers);

// Who backs up what a server is the primary of.
std::map<int, std::vector<proto::BackupPlace>> BackupPlaces(const plan::ShardMap& map,
                                                            const std::vector<Member>& servers);

// Whether each partition has a holder that is none of those.
bool IsHeldWithout(const plan::ShardMap& map, const std::vector<Member>& servers,
                   const std::set<uint64_t>& lost);

std::vector<std::string> HostsOf(const std::vector<Member>& members);

// ResourceExhausted, with its name and bytes, for the first of these servers whose host had too
// little free when it came, for what it has and what comes to it. Who did not say is not judged;
// others may take memory there, too: the server itself has the last word (Reserve).
absl::Status CheckRoom(const std::vector<plan::PartitionSpec>& partitions,
                       const plan::ShardMap& now, const plan::ShardMap& target,
                       const std::vector<Member>& servers, const plan::ServiceOptions& service);

// By how much the most loaded of these servers is above the least loaded, over the largest
// partition.
double Imbalance(const std::vector<plan::PartitionSpec>& partitions, const plan::ShardMap& map,
                 const std::vector<int>& places);

}  // namespace shoal::server
