// Runs `shoal train --json` as a child process and reads its steps. Call from the main thread only
// (core/base/process/subprocess.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/job/job.h"
#include "nlohmann/json.hpp"

namespace shoal::bench {

struct MeasuredStep {
  int64_t step = 0;
  double seconds = 0;
  double idle_share = 0;
  double predicted_idle_share = 0;  // by the planner, before the step
  double grad_norm = 0;
  double loss = 0;
};

// The first steps of a job killed after them.
struct ObservedRun {
  std::vector<MeasuredStep> steps;
  nlohmann::json status;  // of `shoal status` after the last of them
};

class TrainRunner {
 public:
  // `program` is the path of `shoal`. Runs write into `folder`, which must exist.
  TrainRunner(std::string program, std::string folder)
      : program_(std::move(program)), folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }

  // Runs `shoal` to its end and returns its output. Unavailable if it fails, DeadlineExceeded after
  // `limit`, both with its last lines.
  absl::StatusOr<std::string> Run(std::vector<std::string> arguments, absl::Duration limit) const;
  // Trains to the job's end and returns its steps in order. Sets the job's checkpoint directory and
  // removes it. DataLoss if steps are missing.
  absl::StatusOr<std::vector<MeasuredStep>> Train(plan::Job job, absl::Duration limit) const;
  // Trains `steps` steps, then kills all processes: writes no checkpoint. Their logs stay in
  // log_folder() until the next run. Unavailable, with its last lines, if it ends by itself;
  // DeadlineExceeded after `limit`.
  absl::StatusOr<ObservedRun> Observe(plan::Job job, int64_t steps, absl::Duration limit) const;
  std::string log_folder() const { return folder_ + "/checkpoints/logs"; }

 private:
  // Sets the job's checkpoints, removes earlier ones, writes the job file. Returns its path.
  absl::StatusOr<std::string> WriteJob(plan::Job& job) const;

  const std::string program_;
  const std::string folder_;
};

// Reads the steps that `shoal train --json` printed. DataLoss if they are not 1 to `steps`.
absl::StatusOr<std::vector<MeasuredStep>> ParseSteps(const std::string& output, int64_t steps);

}  // namespace shoal::bench
