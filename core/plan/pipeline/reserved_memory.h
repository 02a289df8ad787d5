// What a stage's pools reserve for a step, holes included: what decides whether it fits. Pure.
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

// Of the list of `stage`. Places are not looked for beyond what the budget asks for.
ReservedMemory ReservedBy(const Schedule& schedule, int stage,
                          const std::function<ChunkBytes(int chunk, int microbatch)>& bytes_of,
                          const StageBudget& budget);

}  // namespace shoal::plan
