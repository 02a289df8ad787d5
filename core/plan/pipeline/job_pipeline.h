// What a job's keys (cluster.pipeline) ask of the planner, and for which step. Pure.
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

// A job's steps are as heavy as this many first steps show.
inline constexpr int64_t kTypicalSteps = 20;

// Returns the microbatches that a job's pipeline is planned for: as many as any group has in any of
// these steps (at least one), each of `microbatch_tokens`, which none exceeds, and with the
// attention of the one that has most. A later step may still be heavier or take more memory: it
// then offloads more (fitting_schedule.h).
std::vector<MicrobatchSize> HeaviestStep(std::span<const StepPlan> steps,
                                         int64_t microbatch_tokens);

// Of each stage.
StageBudget BudgetOf(const PipelineOptions& pipeline);

// `job` must be resolved and have cluster.pipeline.enabled(). InvalidArgument, in one line that
// names the keys, for an unknown schedule or one that does not support these stages and chunks, for
// more virtual stages than the model has units, and for a pace that was not measured.
absl::StatusOr<PipelineRequest> PipelineRequestOf(const ModelSpec& spec, const Job& job,
                                                  std::vector<MicrobatchSize> microbatches);

// Returns what the stages of a step with these microbatches need, by stage, with the chosen
// pipeline.
absl::StatusOr<std::vector<StageNeeds>> StageNeedsOf(const ModelSpec& spec, const Job& job,
                                                     const PipelineChoice& choice,
                                                     std::span<const MicrobatchSize> microbatches);

// Returns what is left of a GPU of `gpu_bytes` for a stage's activations and messages
// (cluster.pipeline.device_memory), after weights and gradients (as few as the job allows) and what
// the model needs for itself, for the stage that has least. `stages` may be those of any choice, as
// their other needs hardly differ. ResourceExhausted, with the figures, if nothing is left.
absl::StatusOr<int64_t> DeviceMemoryOn(const ModelSpec& spec, const Job& job, int64_t gpu_bytes,
                                       std::span<const StageNeeds> stages);

}  // namespace shoal::plan
