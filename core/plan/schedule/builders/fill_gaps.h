// Fills the gaps that a repeated pattern leaves at its begin and end, and where its slots are not
// of one length.
#pragma once

#include <vector>

#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_costs.h"

namespace shoal::plan {

// The lists of a V-shaped schedule (two chunks; compute alone, F, B and W apart) in an order with
// which, by these costs, the pipeline ends soonest: where the next action is not ready, another one
// that is goes first. The actions of one kind and chunk keep their order, and no stage holds more
// than it did. Several rules of what goes first are tried, as none is best for all shapes.
std::vector<StageActions> FillGaps(const ScheduleShape& shape, std::vector<StageActions> lists,
                                   const ScheduleCosts& costs);

}  // namespace shoal::plan
