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
// in each chunk the group's microbatches. The last group is whole too, with microbatches that there
// are not.
std::vector<PassItem> GroupedPass(const ScheduleShape& shape, int group, bool backward);

// A stage's list: the first `ahead` forwards, then backward and forward in turn, items of
// microbatches that there are not left out.
StageActions AlternatingStage(const ScheduleShape& shape, const std::vector<PassItem>& forwards,
                              const std::vector<PassItem>& backwards, int ahead,
                              bool split_backward);

// The schedule of these lists, with messages.
Schedule WithMessages(std::string name, const ScheduleShape& shape,
                      std::vector<StageActions> stages);

}  // namespace shoal::plan
