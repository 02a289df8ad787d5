// What a stage's pools reserve for a step, including holes, which decides whether it fits. Pure.
#pragma once

#include <cstdint>
#include <functional>

#include "core/plan/memory/activation_bytes.h"
#include "core/plan/pipeline/planner.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

struct ReservedMemory {
  int64_t device = 0;  // activations, their gradients, and messages within the stage
  int64_t host = 0;

  bool FitsDevice(const StageBudget& budget) const {
    return budget.device == 0 || device <= budget.device - budget.other;
  }
};

// For the list of `stage`. The search for places stops once the budget is met.
ReservedMemory ReservedBy(const Schedule& schedule, int stage,
                          const std::function<ChunkBytes(int chunk, int microbatch)>& bytes_of,
                          const StageBudget& budget);

}  // namespace shoal::plan
