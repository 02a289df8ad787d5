// Who runs the packs that a lost worker leaves undone, where packs are not drawn. Pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/plan/step/step_plan.h"

namespace shoal::plan {

// Returns pairs of pack and worker, costliest first: each pack for the worker, of those that are
// not absent (one at least), that by the plan has the least to do.
std::vector<std::pair<int64_t, int>> HandOver(const StepPlan& plan,
                                              const std::vector<int64_t>& packs,
                                              const std::vector<bool>& absent);

}  // namespace shoal::plan
