// When each stage computes what, from the simulation of a schedule, with nothing begun earlier than
// it is needed: what transfers are placed around.
#pragma once

#include <cstddef>
#include <vector>

#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_costs.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {

// Of one stage, in the order of its list.
struct ComputeTimes {
  std::vector<Action> actions;
  std::vector<double> begins;
  std::vector<double> ends;

  size_t size() const { return actions.size(); }
};

// By stage. The forwards that a stage runs ahead of its first backward begin as late as neither the
// stage's next action nor the forward of the next virtual stage waits for them. `times` are the
// schedule's, with the spans of compute.
std::vector<ComputeTimes> LatestComputeTimes(const Schedule& schedule, const ScheduleCosts& costs,
                                             const ScheduleTimes& times);

}  // namespace shoal::plan
