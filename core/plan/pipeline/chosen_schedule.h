// What was chosen for a pipeline, and the schedule of a step that follows from it. All stages of a
// group build the same table from the same input, each for itself: pure and deterministic.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "core/plan/pipeline/pace_costs.h"
#include "core/plan/schedule/builders/choice.h"
#include "core/plan/schedule/layer_split.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

struct PipelineChoice {
  ScheduleChoice schedule;
  int stages = 1;
  int chunks = 1;
  // How many of each stage's chunks, counted from the first, move their activations to the host:
  // 2.25 means all microbatches of two chunks and every fourth of the third.
  double offloaded_chunks = 0;
  Recompute recompute = Recompute::kNone;
  std::vector<UnitRange> split;  // by virtual stage

  ScheduleShape ShapeOf(size_t microbatches) const {
    return {.stages = stages,
            .chunks = chunks,
            .microbatches = static_cast<int>(microbatches),
            .placement = PlacementOf(schedule)};
  }
  bool operator==(const PipelineChoice&) const = default;
};

// InvalidArgument if the schedule does not support the shape, or the split is not a split of the
// model's units.
absl::Status Validate(const ModelSpec& spec, const PipelineChoice& choice);

// Returns the schedule of a step with these microbatches (at least one, in this numbering), with
// messages and transfers; it passes CheckSchedule. The pace decides where transfers go; if the
// choice asks for more than the copies have time for, what lives longest is offloaded.
absl::StatusOr<Schedule> BuildChosenSchedule(const ModelSpec& spec, DType compute,
                                             const PipelineChoice& choice,
                                             std::span<const MicrobatchSize> microbatches,
                                             const PipelinePace& pace);

}  // namespace shoal::plan
