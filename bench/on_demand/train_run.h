// `shoal train --json` as a child process, with a job made here, and what it says of its steps.
// From the main thread alone (core/base/process/subprocess.h).
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

// The first steps of a job that was then ended.
struct ObservedRun {
  std::vector<MeasuredStep> steps;
  nlohmann::json status;  // of `shoal status`, when the last of them was done
};

class TrainRunner {
 public:
  // `program`: the path of `shoal`. `folder` is there, and what runs leave goes into it.
  TrainRunner(std::string program, std::string folder)
      : program_(std::move(program)), folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }

  // Runs `shoal` with these arguments to its end. Its output. Unavailable, with the last lines of
  // it, if it fails or takes longer than `limit`.
  absl::StatusOr<std::string> Run(std::vector<std::string> arguments, absl::Duration limit) const;
  // Trains to the job's end, in order of the steps. The job's checkpoint directory is set and
  // removed here. DataLoss where steps are missing.
  absl::StatusOr<std::vector<MeasuredStep>> Train(plan::Job job, absl::Duration limit) const;
  // Trains until `steps` are done and kills it all: no checkpoint is written, and none of the
  // processes is left. Their logs are in log_folder() until the next run. Unavailable, with the
  // last lines of the output, where it ends by itself; DeadlineExceeded after `limit`.
  absl::StatusOr<ObservedRun> Observe(plan::Job job, int64_t steps, absl::Duration limit) const;
  std::string log_folder() const { return folder_ + "/checkpoints/logs"; }

 private:
  const std::string program_;
  const std::string folder_;
};

// The steps in what `shoal train --json` has printed so far. DataLoss where they are not 1, 2, ...
absl::StatusOr<std::vector<MeasuredStep>> ParseStepsSoFar(const std::string& output);
// The steps in what `shoal train --json` printed. DataLoss where they are not 1 to `steps`.
absl::StatusOr<std::vector<MeasuredStep>> ParseSteps(const std::string& output, int64_t steps);

}  // namespace shoal::bench
