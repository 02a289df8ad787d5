// When each stage computes what, from the simulation of a schedule, starting nothing earlier than
// needed: transfers are placed around it.
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

// Returns the times by stage. The forwards that a stage runs ahead of its first backward begin as
// late as possible without delaying the stage's next action or the forward of the next virtual
// stage. `times` are the schedule's, with the spans of compute.
std::vector<ComputeTimes> LatestComputeTimes(const Schedule& schedule, const ScheduleCosts& costs,
                                             const ScheduleTimes& times);

}  // namespace shoal::plan
