// The schedule of a step for which the planned offload does not suffice: more microbatches than
// foreseen, or lengths that leave other holes in memory. The step then offloads more, and training
// goes on. Pure and deterministic, as every stage computes it for itself.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/pipeline/chosen_schedule.h"
#include "core/plan/pipeline/planner.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

// What a stage's pools reserve for a step, including holes, which decides whether it fits.
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

// Same as BuildChosenSchedule, for a pipeline whose stages each have this budget. If a device needs
// more, half of the other chunks are offloaded too, then all of them. If even that exceeds the
// device's or the host's budget, it is returned nevertheless, and the runtime refuses it with its
// figures.
absl::StatusOr<Schedule> BuildFittingSchedule(const ModelSpec& spec, DType compute,
                                              const PipelineChoice& choice,
                                              std::span<const MicrobatchSize> microbatches,
                                              const PipelinePace& pace, const StageBudget& budget);

}  // namespace shoal::plan
