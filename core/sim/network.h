// What moving a byte costs a worker of a cluster, and where the byte travels.
//
// The model:
// - A link is shared equally by all that would use it at the same time if all workers were at the
//   same point, so a transfer takes its bytes times a constant of its worker.
// - A worker's transfers follow each other in the order in which they are started.
// - If servers stand beside the devices, a device's link carries its gets one way and, the same
//   way, the pushes of others to its server; these are as many bytes as its own pushes, so gets and
//   pushes share one link.
// - If servers are separate, gets and pushes run in opposite directions and have a link each.
//
// For workers that are not at the same point, which is the purpose of on-demand, this is
// pessimistic: a worker that fetches while others do not would have more than its share.
#pragma once

#include <cstdint>
#include <vector>

#include "core/job/assignment.h"
#include "core/sim/cluster.h"

namespace shoal::sim {

struct TransferCosts {
  double get_seconds_per_byte = 0;
  double push_seconds_per_byte = 0;
  double latency = 0;  // from the end of a transfer to when it counts as done
  bool one_link = true;

  bool operator==(const TransferCosts&) const = default;
};

// Returns the costs for one worker. With synchronization layer and hierarchical transfers: what
// collectives take.
TransferCosts TransferCostsOf(const plan::ClusterSpec& cluster,
                              plan::Synchronization synchronization, int64_t worker);

// Returns the seconds from the last worker's finish to the start of the next step: the two barriers
// of a step, each a message there and back, and the servers' work.
double StepEndSeconds(const plan::ClusterSpec& cluster);

// Bytes of all workers.
struct StepBytes {
  int64_t get = 0;  // requested by workers, including from a server beside them
  int64_t push = 0;
  // the part of them that crosses a node's link: into it or out of it once
  double between_nodes = 0;

  StepBytes& operator+=(const StepBytes& other);
  bool operator==(const StepBytes&) const = default;
};

// `get` and `push`: of each worker.
struct WorkerBytes {
  int64_t get = 0;
  int64_t push = 0;
};
StepBytes CountBytes(const plan::ClusterSpec& cluster, plan::Synchronization synchronization,
                     const std::vector<WorkerBytes>& workers);

}  // namespace shoal::sim
