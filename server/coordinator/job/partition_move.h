// Partitions of a job that change servers between two steps: who takes part, and what is to come
// from where. Pure; JobRun makes the calls.
#pragma once

#include <cstdint>
#include <map>
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
  plan::ShardMap map;
  // Partitions, by who gets them, and who has them before: places in `members`.
  std::map<int, std::vector<int>> comes;
  std::vector<int> giver;  // by partition
  int64_t partitions = 0;

  std::vector<proto::PartitionSource> SourcesFor(int member) const;
};

// To `wanted` servers, from these: the first of `spares` come, of which there must be enough, or
// the last of `servers` go. `generation`: of the map.
PartitionMove PlanMove(const std::vector<plan::PartitionSpec>& partitions,
                       const plan::ShardMap& now, const std::vector<Member>& servers,
                       const std::vector<Member>& spares, int64_t wanted, int64_t generation);

// ResourceExhausted, with its name and bytes, for the first of these servers whose host had too
// little free when it came, for what it has and what comes to it. Who did not say is not judged;
// others may take memory there, too: the server itself has the last word (Reserve).
absl::Status CheckRoom(const std::vector<plan::PartitionSpec>& partitions,
                       const plan::ShardMap& now, const plan::ShardMap& target,
                       const std::vector<Member>& servers, const plan::ServiceOptions& service);

// By how much the most loaded server is above the least loaded, over the largest partition.
double Imbalance(const std::vector<plan::PartitionSpec>& partitions, const plan::ShardMap& map,
                 int64_t servers);

}  // namespace shoal::server
