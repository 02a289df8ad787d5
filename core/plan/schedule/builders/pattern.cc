#include "core/plan/schedule/builders/pattern.h"

#include <algorithm>
#include <utility>

namespace shoal::plan {

std::vector<PassItem> GroupedPass(const ScheduleShape& shape, int group, bool backward) {
  std::vector<PassItem> items;
  for (int first = 0; first < shape.microbatches; first += group) {
    for (int turn = 0; turn < shape.chunks; ++turn) {
      for (int n = first; n < first + group; ++n) {
        items.push_back({.chunk = backward ? shape.chunks - 1 - turn : turn, .microbatch = n});
      }
    }
  }
  return items;
}

StageActions AlternatingStage(const ScheduleShape& shape, const std::vector<PassItem>& forwards,
                              const std::vector<PassItem>& backwards, int ahead,
                              bool split_backward) {
  StageActions actions;
  const auto add = [&](Operation operation, const PassItem& item) {
    if (item.microbatch < shape.microbatches) {
      actions.push_back({operation, item.chunk, item.microbatch});
    }
  };
  size_t next = 0;
  for (; next < std::min(forwards.size(), static_cast<size_t>(ahead)); ++next) {
    add(Operation::kForward, forwards[next]);
  }
  for (const PassItem& item : backwards) {
    if (split_backward) {
      add(Operation::kBackwardInput, item);
      add(Operation::kBackwardWeights, item);
    } else {
      add(Operation::kBackward, item);
    }
    if (next < forwards.size()) {
      add(Operation::kForward, forwards[next++]);
    }
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
