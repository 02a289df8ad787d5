// What the builders of core/plan/schedule/builders share.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

// Returns a stage's actions in the order of their slots.
StageActions InOrder(std::vector<std::pair<int64_t, Action>> slots);

// Returns the schedule of these lists, including messages.
Schedule WithMessages(std::string name, const ScheduleShape& shape,
                      std::vector<StageActions> stages);

}  // namespace shoal::plan
