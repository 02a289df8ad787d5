#include "core/plan/pipeline/fitting_schedule.h"

#include <utility>

#include "core/base/status.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/pipeline/reserved_memory.h"

namespace shoal::plan {
namespace {

bool FitsDevices(const ModelSpec& spec, DType compute, const PipelineChoice& choice,
                 std::span<const MicrobatchSize> microbatches, const Schedule& schedule,
                 const StageBudget& budget) {
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    const auto bytes_of = [&](int chunk, int microbatch) {
      return PlanChunkBytes(
          spec, compute,
          choice.split[static_cast<size_t>(schedule.shape.VirtualStageOf(stage, chunk))],
          choice.recompute, microbatches[static_cast<size_t>(microbatch)].tokens);
    };
    if (!ReservedBy(schedule, stage, bytes_of, budget).FitsDevice(budget)) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<Schedule> BuildFittingSchedule(const ModelSpec& spec, DType compute,
                                              const PipelineChoice& choice,
                                              std::span<const MicrobatchSize> microbatches,
                                              const PipelinePace& pace, const StageBudget& budget) {
  SHOAL_ASSIGN_OR_RETURN(Schedule schedule,
                         BuildChosenSchedule(spec, compute, choice, microbatches, pace));
  PipelineChoice more = choice;
  for (const double share : {0.5, 1.0}) {
    if (budget.device == 0 || !pace.CanOffload() || more.offloaded_chunks == more.chunks ||
        FitsDevices(spec, compute, more, microbatches, schedule, budget)) {
      break;
    }
    more.offloaded_chunks =
        choice.offloaded_chunks + share * (more.chunks - choice.offloaded_chunks);
    SHOAL_ASSIGN_OR_RETURN(schedule, BuildChosenSchedule(spec, compute, more, microbatches, pace));
  }
  return schedule;
}

}  // namespace shoal::plan
