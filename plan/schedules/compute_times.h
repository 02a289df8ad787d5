// When each stage computes what, from the simulation of a schedule, with nothing begun earlier than
// it is needed: what transfers are placed around.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "plan/schedule.h"
#include "plan/schedule_costs.h"

namespace shoal::plan {

struct TimedAction {
  Action action;
  double begin = 0;
  double end = 0;
};

// By stage, in the order of its list. The forwards that a stage runs ahead of its first backward
// begin as late as neither the stage's next action nor the forward of the next virtual stage waits
// for them. An error just where the schedule waits for ever.
absl::StatusOr<std::vector<std::vector<TimedAction>>> LatestComputeTimes(
    const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace shoal::plan
