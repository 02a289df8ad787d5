// A job's pipeline: what its keys (cluster.pipeline) ask the planner for, and by which step. Pure.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/pipeline/planner.h"
#include "core/plan/step/step_plan.h"

namespace shoal::plan {

// So many first steps tell how heavy a job's steps are.
inline constexpr int64_t kTypicalSteps = 20;

// The microbatches that a job's pipeline is planned for: as many as any group has in any of these
// steps, one at least, each of `microbatch_tokens`, which none exceeds, and with the attention of
// the one that has most. A later step may be heavier or take more memory all the same: then more is
// offloaded (fitting_schedule.h).
std::vector<MicrobatchSize> HeaviestStep(std::span<const StepPlan> steps,
                                         int64_t microbatch_tokens);

// Of each stage.
StageBudget BudgetOf(const PipelineOptions& pipeline);

// `job` is resolved and has cluster.pipeline.enabled(). InvalidArgument, in one line that names the
// keys, for a schedule that is none or not made for these stages and chunks, more virtual stages
// than the model has units, and a pace that was not measured.
absl::StatusOr<PipelineRequest> PipelineRequestOf(const ModelSpec& spec, const Job& job,
                                                  std::vector<MicrobatchSize> microbatches);

// What the stages of a step with these microbatches need, by stage, where the pipeline is as
// chosen.
absl::StatusOr<std::vector<StageNeeds>> StageNeedsOf(const ModelSpec& spec, const Job& job,
                                                     const PipelineChoice& choice,
                                                     std::span<const MicrobatchSize> microbatches);

// What is left of a GPU of `gpu_bytes` for a stage's activations and messages
// (cluster.pipeline.device_memory), beside weights and gradients, as few of them as the job lets be
// kept, and what the model needs for itself: of the stage that has least. `stages` are those of any
// choice, whose other needs are much the same. ResourceExhausted, with the figures, where nothing
// is left.
absl::StatusOr<int64_t> DeviceMemoryOn(const ModelSpec& spec, const Job& job, int64_t gpu_bytes,
                                       std::span<const StageNeeds> stages);

}  // namespace shoal::plan
