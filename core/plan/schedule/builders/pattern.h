// What the builders of core/plan/schedule/builders share.
#pragma once

#include <string>
#include <vector>

#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

struct PassItem {
  int chunk = 0;
  int microbatch = 0;
};

// Groups of `group` microbatches; in each group the chunks in turn (the last first for `backward`),
// in each chunk the group's microbatches. The last group is whole too, including microbatches that
// do not exist.
std::vector<PassItem> GroupedPass(const ScheduleShape& shape, int group, bool backward);

// Returns a stage's list: the first `ahead` forwards, then alternately backward and forward,
// without the items of microbatches that do not exist.
StageActions AlternatingStage(const ScheduleShape& shape, const std::vector<PassItem>& forwards,
                              const std::vector<PassItem>& backwards, int ahead,
                              bool split_backward);

// Returns the schedule of these lists, including messages.
Schedule WithMessages(std::string name, const ScheduleShape& shape,
                      std::vector<StageActions> stages);

}  // namespace shoal::plan
