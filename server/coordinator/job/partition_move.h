// Partitions of a job that change servers between two steps: who takes part, and what is to come
// from where. Pure; JobRun makes the calls.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "proto/server.pb.h"
#include "server/coordinator/members/membership.h"

namespace shoal::server {

struct PartitionMove {
  // Those of the job, by their place in the map of before, then those that come.
  std::vector<Member> members;
  size_t before = 0;          // so many are the job's
  std::vector<Member> after;  // those of the job, by their place in `map`
  std::vector<int> leavers;   // members that are the job's no more
  plan::ShardMap map;
  // Partitions, by who gets them, and who has them before: places in `members`.
  std::map<int, std::vector<int>> comes;
  std::vector<int> giver;  // by partition
  int64_t partitions = 0;

  std::vector<int> joiners() const;  // members that come
  std::vector<proto::PartitionSource> SourcesFor(int member) const;
};

// Who is to hold a job's partitions, as places in `servers` and, above those, in a list of spares:
// the first `wanted` of those that stay, and of the spares.
std::vector<int> PlacesToBe(const std::vector<Member>& servers, const std::set<uint64_t>& leaving,
                            int64_t wanted);

// To those places, of which there must be as many spares as they say. `generation`: of the map.
PartitionMove PlanMove(const std::vector<plan::PartitionSpec>& partitions,
                       const plan::ShardMap& now, const std::vector<Member>& servers,
                       const std::vector<Member>& spares, const std::vector<int>& places,
                       int64_t generation);

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
