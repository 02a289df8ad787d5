// Schedules run by the runtime: stages are threads, each with an emulated device that computes
// nothing and takes its time, real memory in an arena and real copies at a set rate.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "bench/pipeline/candidates.h"
#include "bench/report/report.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::bench {

struct MeasuredOptions {
  // Of a stage's forward of one microbatch.
  double unit_seconds = 0.012;
  // That count, after a first one that does not.
  int steps = 5;
};

struct Measured {
  double step_seconds = 0;  // the median: from the first stage's begin to the last one's end
  std::vector<int64_t> peak_device_bytes;  // by stage
  std::vector<int64_t> peak_host_bytes;
  double transfer_stall_seconds = 0;  // of the stage that waits longest, in the median step
  double neighbour_stall_seconds = 0;
  // Of the last step, as the timeline draws it.
  plan::ScheduleTimes times;
};

absl::StatusOr<Measured> RunCandidate(const Candidate& candidate, const MeasuredOptions& options);

// Measured beside simulated at 2 to 8 stages, with the bars.
absl::Status AddMeasured(const MeasuredOptions& options, Report& report);

}  // namespace shoal::bench
