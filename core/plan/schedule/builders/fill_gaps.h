// Fills the gaps that a repeated pattern leaves at its start and end, and where its slots differ in
// length.
#pragma once

#include <vector>

#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_costs.h"

namespace shoal::plan {

// Reorders the lists of a V-shaped schedule (two chunks; only compute, F, B and W separate) so
// that, by these costs, the pipeline ends soonest: if the next action is not ready, another that is
// goes first. The actions of one kind and chunk keep their order, and no stage holds more than
// before. Tries several priority rules, as none is best for all shapes.
std::vector<StageActions> FillGaps(const ScheduleShape& shape, std::vector<StageActions> lists,
                                   const ScheduleCosts& costs);

}  // namespace shoal::plan
