// A coordinator, servers and workers as threads of one process, talking real gRPC over loopback,
// with no tensors and no compute: what is left of a step is the control plane.
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
  int64_t samples = 32;    // of a step
  int64_t stop_after = 0;  // StopJob when this step was told; 0: never
  std::string state_file;  // SQLite; empty: in memory
};

struct LoopbackResult {
  std::vector<double> step_seconds;  // from commit to commit, the first left out
  std::vector<proto::JobEvent> events;
  std::string metrics;
  int worker_errors = 0;
};

absl::StatusOr<LoopbackResult> RunLoopback(const LoopbackOptions& options);

}  // namespace shoal::server::testing
