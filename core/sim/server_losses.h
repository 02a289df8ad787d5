// Whether a job is better off with replicas of its servers' state or with checkpoints alone, by
// what losses of servers cost: a plan's answer, not a measurement.
#pragma once

#include <cstdint>

#include "core/sim/cluster.h"

namespace shoal::sim {

struct ServedJob {
  int64_t servers = 1;
  int64_t replicas = 2;      // that it would have: of each partition, the primary among them
  int64_t parameters = 0;    // that train
  int64_t backup_bytes = 0;  // memory that one backup of each partition takes, of all servers
  double step_seconds = 0;
};

// As shares of the time that training takes without any loss.
struct LossCosts {
  double seconds_between = 0;           // mean time between two losses of any server
  double checkpoints = 0;               // at the interval that is best
  double checkpoint_every_seconds = 0;  // that interval
  double replicas = 0;
  int64_t copies = 0;         // that replicas are reckoned with
  int64_t replica_bytes = 0;  // memory that backups take of each server
};

// Checkpoints at their best interval (Young, 1974) cost sqrt(2 c / M) + R / M, with M the mean time
// between losses, c what one costs and R until training goes on. Replicas cost the time that the
// gradients of a server (4 bytes a parameter) take to each backup in each step, none of it
// overlapped, and for each loss half a step and its detection. `cluster.losses` must be given.
LossCosts CompareLossCosts(const plan::ClusterSpec& cluster, const ServedJob& job);

}  // namespace shoal::sim
