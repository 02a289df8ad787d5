// A whole cluster in the test's own process: the real coordinator, servers and workers, with gRPC
// over loopback between them, each worker on a thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job/job.h"
#include "core/transport/testing/fault_transport.h"
#include "proto/coordinator.pb.h"
#include "server/service/gpu_memory.h"
#include "worker/backend/open/open_device.h"

namespace shoal::testing {

struct ClusterOptions {
  int servers = 1;
  int workers = 1;
  bool trace = false;
  bool resume = false;          // goes on from the newest checkpoint
  std::string validation_file;  // where the job has a validation
  bool local = true;            // as the job says
  bool encrypted = false;       // what goes over tcp, as with TLS
  bool stranger = false;        // one that has the token and is no worker wants to push
  int lost_worker = -1;         // one that is gone after the first step, by number
  int lost_server = -1;         // the same, with service.replicas
  // That the job is to have, in waves from the first step on; 0: as many as it has.
  int wanted_servers = 0;
  // Seed 0: none. Each worker gets faults of its own.
  transport::FaultOptions faults = {.seed = 0};
  // What a worker (by number) computes on; empty: the CPU.
  std::function<absl::StatusOr<worker::OpenedDevice>(int worker)> open_device;
  // With service.memory cuda.
  server::GpuOpener open_gpu;
};

struct ClusterRun {
  std::vector<proto::StepEvent> steps;
  std::vector<proto::ValidationEvent> validations;
  std::vector<proto::TraceEvent> traces;  // where options.trace asked for them
  proto::JobEvent end;                    // done or failed
  std::vector<uint64_t> checksums;        // of the fp32 masters, by partition
  proto::ScaleReply scaling;              // where it stood at the last step
  int64_t connections = 0;                // that workers made to servers
  // By unit, as published, read by a read-only client; none where servers have changed.
  std::vector<std::vector<float>> weights;
  std::string worker_metrics;  // worker 0's, as text
  absl::Status stranger;       // what became of it, in the middle of the run
};

// Trains `job` (cluster sizes are set from the options) on a token file, from start to end.
absl::StatusOr<ClusterRun> Train(plan::Job job, const std::string& token_file,
                                 const ClusterOptions& options);

// The same from an empty checkpoint directory; a run that does not come to its end, with every step
// told, fails the test.
ClusterRun TrainToEnd(const plan::Job& job, const std::string& token_file,
                      const ClusterOptions& options);

}  // namespace shoal::testing
