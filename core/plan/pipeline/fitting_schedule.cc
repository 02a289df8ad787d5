#include "core/plan/pipeline/fitting_schedule.h"

#include <array>
#include <limits>
#include <utility>

#include "core/base/status.h"
#include "core/plan/memory/stage_memory.h"

namespace shoal::plan {
namespace {

constexpr int64_t kPoolAlignment = 64;  // of what the runtime's pools allocate

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

ReservedMemory ReservedBy(const Schedule& schedule, int stage,
                          const std::function<ChunkBytes(int chunk, int microbatch)>& bytes_of,
                          const StageBudget& budget) {
  // Without a budget anything is enough.
  const auto enough = [](int64_t limit, int64_t taken) {
    return limit > 0 ? limit - taken : std::numeric_limits<int64_t>::max();
  };
  const auto reserve = [&](int64_t messages) {
    std::array<int64_t, kMemoryPools> limits = {};
    limits[static_cast<size_t>(MemoryPool::kDevice)] =
        enough(budget.device, budget.other + messages);
    limits[static_cast<size_t>(MemoryPool::kHost)] = enough(budget.host, 0);
    return ReplayMemory(schedule, stage, bytes_of, kPoolAlignment, limits);
  };
  StageMemory memory = reserve(0);
  const int64_t messages = memory.Of(MemoryPool::kMessages).capacity;
  ReservedMemory reserved{.device = memory.Of(MemoryPool::kDevice).capacity + messages,
                          .host = memory.Of(MemoryPool::kHost).capacity};
  if (!reserved.FitsDevice(budget) && messages > 0) {
    memory = reserve(messages);
    reserved.device = memory.Of(MemoryPool::kDevice).capacity + messages;
  }
  return reserved;
}

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
