// Fills the gaps that a repeated pattern leaves at its begin and end.
#pragma once

#include <vector>

#include "plan/schedule.h"

namespace shoal::plan {

// The lists (compute alone, F, B and W apart) in an order with which, all times equal, the stage
// that waits longest waits less: where the next action is not ready, a later one that is goes
// first. The actions of one kind and chunk keep their order, and no stage holds more than it did.
// The lists as they were where that gains nothing.
std::vector<StageActions> FillGaps(const ScheduleShape& shape, std::vector<StageActions> lists);

}  // namespace shoal::plan
