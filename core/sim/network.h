// What moving a byte costs a worker of a cluster, and where the byte travels.
//
// The model: a link is shared in equal parts by all that would use it at the same time if all
// workers were at the same point, so a transfer's time is its bytes times a constant of its worker.
// A worker's transfers follow each other in the order in which they are started. Where servers
// stand beside the devices, a device's link carries its gets one way and, the same way, the pushes
// of others to its server; these are as many bytes as its own pushes, so gets and pushes share one
// lane. Where servers stand apart, gets and pushes run in opposite directions and each have a lane.
// For workers that are not at the same point, which is what on-demand is for, this is the
// pessimistic side: a worker that fetches alone would have more than its share.
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
  bool one_lane = true;

  bool operator==(const TransferCosts&) const = default;
};

// Of one worker. With synchronization layer and hierarchical transfers: what collectives take.
TransferCosts TransferCostsOf(const plan::ClusterSpec& cluster,
                              plan::Synchronization synchronization, int64_t worker);

// Seconds from the last worker's finish to the next step's begin: the two meetings of a step, each
// a message there and back, and the servers' work.
double StepEndSeconds(const plan::ClusterSpec& cluster);

// Bytes of all workers.
struct StepBytes {
  int64_t get = 0;  // asked for by workers, a server beside them included
  int64_t push = 0;
  double between_nodes = 0;  // of those, what crosses a node's link: into it or out of it once

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
