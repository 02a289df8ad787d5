#include "core/plan/schedule/builders/pattern.h"

#include <algorithm>

namespace shoal::plan {

StageActions InOrder(std::vector<std::pair<int64_t, Action>> slots) {
  std::ranges::sort(slots);
  StageActions actions;
  for (const auto& [slot, action] : slots) {
    actions.push_back(action);
  }
  return actions;
}

Schedule WithMessages(std::string name, const ScheduleShape& shape,
                      std::vector<StageActions> stages) {
  Schedule schedule{.name = std::move(name), .shape = shape, .stages = std::move(stages)};
  AddMessages(schedule);
  return schedule;
}

}  // namespace shoal::plan
