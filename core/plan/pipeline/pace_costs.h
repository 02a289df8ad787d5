// How long the chunks of a pipeline take on a machine whose rates are known, measured by a probe or
// given. Turns a model, a split of its layers and a step's microbatches into the costs of
// core/plan/schedule/schedule_costs.h. Pure.
//
// - A block's forward takes its matrices' and its attention's operations; the backward for the
//   input takes the same for the matrices and twice the attention; the backward for the weights
//   only the matrices'.
// - The head's loss, input gradient and weight gradient all run in its backward for the input:
//   three times its matrix.
// - The embedding takes no time.
// - Matrices see all rows, including padding. Attention stays within each sequence, so the squares
//   of sequence lengths add up.
// - Matrices, attention and the head have separate rates, which differ severalfold in a small
//   model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/base/dtype.h"
#include "core/job/pipeline_options.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "core/plan/schedule/layer_split.h"
#include "core/plan/schedule/schedule_costs.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {

inline CopyStreams StreamsOf(const PipelinePace& pace) {
  return {.duplex = pace.duplex, .paired = pace.paired};
}

// FLOP rates must be positive, the others not negative, all of them finite.
absl::Status Validate(const PipelinePace& pace);

// What a microbatch's costs depend on.
struct MicrobatchSize {
  int64_t tokens = 0;
  double squared_tokens = 0;  // summed over its sequences

  bool operator==(const MicrobatchSize&) const = default;
};
MicrobatchSize SizeOfSequences(std::span<const int64_t> lengths);

// What a pipeline computes; with a pace it gives the costs of its chunks.
struct PipelineModel {
  const ModelSpec& spec;
  DType compute = DType::kF32;
  Recompute recompute = Recompute::kNone;
};

// Returns the seconds of each unit for F, B and W of these microbatches together, which SplitLayers
// balances.
std::vector<double> UnitCosts(const PipelineModel& model,
                              std::span<const MicrobatchSize> microbatches,
                              const PipelinePace& pace);

// Returns seconds and bytes. `split` needs a range for each virtual stage of the shape,
// `microbatches` as many as the shape; the pace must be valid. If it cannot offload, copies take no
// time and must not be made.
ScheduleCosts PipelineCosts(const PipelineModel& model, const ScheduleShape& shape,
                            std::span<const UnitRange> split,
                            std::span<const MicrobatchSize> microbatches, const PipelinePace& pace);

}  // namespace shoal::plan
