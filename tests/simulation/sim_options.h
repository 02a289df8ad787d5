// What a simulated run consists of, without its faults.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "core/job/job.h"

namespace shoal::simulation {

struct SimOptions {
  uint64_t seed = 1;
  int servers = 2;        // that a job begins with
  int spare_servers = 0;  // that it may be told to take
  int workers = 3;
  int spares = 0;                   // beyond the workers that a job takes
  int stages = 1;                   // per worker group
  bool addresses = true;            // workers register with addresses
  bool hosts_and_loopback = false;  // hosts by number, with addresses valid only there
  int64_t steps = 5;
  int64_t stop_after = 0;  // LoadedJob::last_step, 0: steps
  int64_t samples = 8;     // per step
  int64_t checkpoint_every = 2;
  double checkpoint_seconds = 0;
  int64_t validate_every = 0;   // data.validation.every_steps; 0: there is none
  int64_t pairs = 0;            // that samples are, of the data, which have references; 0: none
  int64_t patience = 0;         // train.early_stop.patience
  bool keep_best = false;       // checkpoint.best
  bool skip_nonfinite = false;  // train.skip_step.nonfinite
  bool resume = false;
  bool draw = false;   // plan.assignment: dynamic
  bool layer = false;  // train.synchronization: layer
  bool sums = false;   // train.push: step
  plan::OnServerLoss on_server_loss = plan::OnServerLoss::kAuto;
  bool trace = false;
  // Probabilities, each per occasion.
  // A worker misses the answer of NextStep or DrawMicrobatch and asks again.
  double lost_reply = 0;
  double repeated_report = 0;  // the report arrives a second time, later
  double failed_report = 0;    // the worker reports that it failed
  double slow_worker = 0;      // takes a hundred times longer
  double early_report = 0;     // the worker leaves out some of its own work, or draws none of it

  bool exact = false;          // service.accumulate
  int replicas = 1;            // service.replicas
  bool read_replicas = false;  // service.read_replicas
  bool exact_devices = false;  // train.exact_devices
  // A worker that computes on something else than the others from its second life on.
  int other_kind = -1;
  double lease_seconds = 10;
  double start_timeout_seconds = 60;
  double recovery_timeout_seconds = 1800;
  int min_workers = 1;
  int min_servers = 1;
  bool elastic = false;
  int64_t model_growth = 1;               // 1: it has five partitions, 4: 18
  int64_t wave_bytes = int64_t{1} << 20;  // of the first wave of state that moves
  int64_t move_rate = 0;                  // of wishes
  int64_t max_restarts = 3;
  // Members and coordinator stay: jobs come one after the other, and processes that end are started
  // again.
  bool stays = false;
  int jobs = 1;
  // Runs last so long at most.
  absl::Duration limit = absl::Hours(1);
  bool print = false;  // the trace

  bool operator==(const SimOptions&) const = default;
};

// As C++: what differs from the defaults.
std::string ToCode(const SimOptions& options);

// How a worker lies, for directed tests.
enum class Lie { kNone, kTargets, kMicrobatches, kForeign, kNeighbour };

}  // namespace shoal::simulation
