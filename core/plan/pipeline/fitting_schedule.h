// The schedule of a step for which the planned offload does not suffice: more microbatches than
// foreseen, or lengths that leave other holes in memory. The step then offloads more, and training
// goes on. Pure and deterministic, as every stage computes it for itself.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "core/plan/pipeline/chosen_schedule.h"
#include "core/plan/pipeline/planner.h"

namespace shoal::plan {

// Same as BuildChosenSchedule, for a pipeline whose stages each have this budget. If a device needs
// more, half of the other chunks are offloaded too, then all of them. If even that exceeds the
// device's or the host's budget, it is returned nevertheless, and the runtime refuses it with its
// figures.
absl::StatusOr<Schedule> BuildFittingSchedule(const ModelSpec& spec, DType compute,
                                              const PipelineChoice& choice,
                                              std::span<const MicrobatchSize> microbatches,
                                              const PipelinePace& pace, const StageBudget& budget);

}  // namespace shoal::plan
