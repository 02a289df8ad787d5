// A coordinator, servers and workers as threads of one process, over real gRPC on loopback, without
// tensors or computing: what remains of a step is the control plane.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"

namespace shoal::server::testing {

struct LoopbackOptions {
  int servers = 2;
  int workers = 4;
  int64_t steps = 20;
  int64_t samples = 32;    // per step
  int64_t stop_after = 0;  // calls StopJob after this step; 0: never
  std::string state_file;  // SQLite; empty: in memory
};

struct LoopbackResult {
  std::vector<double> step_seconds;  // from commit to commit, without the first
  std::vector<proto::JobEvent> events;
  std::string metrics;
  int worker_errors = 0;
};

absl::StatusOr<LoopbackResult> RunLoopback(const LoopbackOptions& options);

}  // namespace shoal::server::testing
