#include "core/plan/pipeline/least_recompute.h"

#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/plan/pipeline/job_pipeline.h"
#include "core/plan/schedule/stage_units.h"

namespace shoal::plan {
namespace {

// Of one stage that offloads nothing. What it needs depends neither on its pace nor on how many
// microbatches come after the first.
absl::StatusOr<std::vector<StageNeeds>> NeedsWith(const ModelSpec& spec, Job job,
                                                  Recompute recompute) {
  job.cluster.pipeline = {
      .pace = {.forward_flops = 1, .backward_input_flops = 1, .backward_weights_flops = 1}};
  const PipelineChoice choice = {.schedule = {.kind = ScheduleKind::kAccumulation},
                                 .recompute = recompute,
                                 .split = {AllUnits(spec)}};
  const MicrobatchSize largest = {.tokens = job.data.microbatch_tokens};
  return StageNeedsOf(spec, job, choice, {&largest, 1});
}

absl::StatusOr<MemoryPlan> PlanOf(const ModelSpec& spec, const Job& job, const MemoryBudget& budget,
                                  std::span<const StageNeeds> stages = {}) {
  return PlanMemory(spec, job, static_cast<int>(job.cluster.servers),
                    static_cast<int>(job.cluster.workers), budget, stages);
}

absl::StatusOr<std::string> SettleOnCpu(const ModelSpec& spec, Job& job, const MemoryBudget& budget,
                                        const MemoryPlan& unlimited) {
  absl::Status status;
  for (const Recompute recompute : {Recompute::kLight, Recompute::kFull}) {
    SHOAL_ASSIGN_OR_RETURN(const auto stages, NeedsWith(spec, job, recompute));
    status = PlanOf(spec, job, budget, stages).status();
    if (status.ok()) {
      job.cluster.pipeline.recompute = recompute;
      job.cluster.pipeline.offload.value = 0;
      return fmt::format("train.recompute: {}, the least that fits: {} without, {} are available",
                         Name(recompute), FormatBytes(unlimited.total()),
                         FormatBytes(budget.machine_bytes));
    }
  }
  return Annotate(status, "even with train.recompute: full");
}

absl::StatusOr<std::string> SettleOnGpu(const ModelSpec& spec, Job& job, const MemoryBudget& budget,
                                        const MemoryPlan& unlimited) {
  SHOAL_ASSIGN_OR_RETURN(
      const auto stages,
      NeedsWith(spec, job, job.cluster.pipeline.recompute.value_or(Recompute::kFull)));
  SHOAL_ASSIGN_OR_RETURN(job.cluster.pipeline.device_memory,
                         DeviceMemoryOn(spec, job, budget.gpu_bytes, stages));
  return fmt::format(
      "train.recompute and train.offload: as {} of a GPU's memory for activations ask for; {} of "
      "the {} that are free would be needed without",
      FormatBytes(job.cluster.pipeline.device_memory),
      FormatBytes(unlimited.stages.front().gpu.total()), FormatBytes(budget.gpu_bytes));
}

}  // namespace

absl::StatusOr<std::string> SettleRecompute(const ModelSpec& spec, Job& job,
                                            const MemoryBudget& budget) {
  const absl::Status fits = PlanOf(spec, job, budget).status();
  const PipelineOptions& pipeline = job.cluster.pipeline;
  const bool on_gpu = job.train.device == DeviceKind::kCuda;
  const bool open = !pipeline.recompute.has_value() ||
                    (on_gpu && pipeline.offload.value == OffloadedChunks::kAuto);
  if (fits.ok()) {
    return "";
  }
  if (!open || HindersSchedules(job).has_value()) {
    return fits;
  }
  SHOAL_ASSIGN_OR_RETURN(const MemoryPlan unlimited, PlanOf(spec, job, {}));
  if (!on_gpu) {
    return SettleOnCpu(spec, job, budget, unlimited);
  }
  // It takes nothing off the host.
  SHOAL_RETURN_IF_ERROR(PlanOf(spec, job, {.machine_bytes = budget.machine_bytes}).status());
  return SettleOnGpu(spec, job, budget, unlimited);
}

}  // namespace shoal::plan
