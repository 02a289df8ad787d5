// From a plan to what the model runs: the samples of one microbatch, packed.
#pragma once

#include "absl/status/statusor.h"
#include "core/data/token_file.h"
#include "core/plan/step/step_plan.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

// Samples in the plan's order, one sequence each. FailedPrecondition if the file does not have what
// was planned (samples, tokens, targets): then coordinator and worker look at different data, and
// training on it would be silently wrong.
absl::StatusOr<PackedBatch> BuildBatch(const formats::TokenFile& file,
                                       const plan::Microbatch& microbatch);

}  // namespace shoal::worker
