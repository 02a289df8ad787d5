// The schedule of a step of a pipeline that was planned for another one: more microbatches than
// were foreseen, or lengths that leave other holes in memory, and what was to be offloaded does not
// suffice. Then more is, and training goes on. Pure and deterministic, as all stages find it for
// themselves.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "core/plan/pipeline/chosen_schedule.h"
#include "core/plan/pipeline/planner.h"

namespace shoal::plan {

// As BuildChosenSchedule, of a pipeline each of whose stages has this budget. Where a device would
// need more, half of the other chunks are offloaded too, and then all; if that is still too much,
// for the device or for the host, it is returned all the same, for the runtime to refuse with its
// figures.
absl::StatusOr<Schedule> BuildFittingSchedule(const ModelSpec& spec, DType compute,
                                              const PipelineChoice& choice,
                                              std::span<const MicrobatchSize> microbatches,
                                              const PipelinePace& pace, const StageBudget& budget);

}  // namespace shoal::plan
