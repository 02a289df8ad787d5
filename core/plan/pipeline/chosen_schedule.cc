#include "core/plan/pipeline/chosen_schedule.h"

#include <utility>

#include "core/base/status.h"
#include "core/plan/schedule/builders/offload.h"

namespace shoal::plan {

absl::Status Validate(const ModelSpec& spec, const PipelineChoice& choice) {
  SHOAL_RETURN_IF_ERROR(CheckChoice(choice.schedule, choice.stages, choice.chunks));
  if (!(choice.offloaded_chunks >= 0 && choice.offloaded_chunks <= choice.chunks)) {
    return InvalidArgument("{} of {} chunks cannot be offloaded", choice.offloaded_chunks,
                           choice.chunks);
  }
  int64_t next = 0;
  for (const UnitRange& units : choice.split) {
    if (units.first != next || units.count < 1 || units.count > spec.layers + 2) {
      return InvalidArgument("the split has {} units from {} on where those from {} on are next",
                             units.count, units.first, next);
    }
    next = units.end();
  }
  if (static_cast<int64_t>(choice.split.size()) != int64_t{choice.stages} * choice.chunks ||
      next != spec.layers + 2) {
    return InvalidArgument(
        "the split has {} ranges of together {} units for {} stages of {} chunks and {} units",
        choice.split.size(), next, choice.stages, choice.chunks, spec.layers + 2);
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> BuildChosenSchedule(const ModelSpec& spec, DType compute,
                                             const PipelineChoice& choice,
                                             std::span<const MicrobatchSize> microbatches,
                                             const PipelinePace& pace) {
  SHOAL_RETURN_IF_ERROR(Validate(spec, choice));
  SHOAL_RETURN_IF_ERROR(Validate(pace));
  if (microbatches.empty()) {
    return InvalidArgument("a pipeline's step needs at least one microbatch");
  }
  const ScheduleShape shape = choice.ShapeOf(microbatches.size());
  const ScheduleCosts costs =
      PipelineCosts({.spec = spec, .compute = compute, .recompute = choice.recompute}, shape,
                    choice.split, microbatches, pace);
  Schedule schedule =
      BuildSchedule(choice.schedule, choice.stages, choice.chunks, shape.microbatches, &costs);
  if (choice.offloaded_chunks > 0 && pace.CanOffload()) {
    SHOAL_ASSIGN_OR_RETURN(
        OffloadPlan offloaded,
        AddOffloads(schedule, costs, FirstChunks(shape, choice.offloaded_chunks), StreamsOf(pace)));
    schedule = std::move(offloaded.schedule);
  }
  return schedule;
}

}  // namespace shoal::plan
