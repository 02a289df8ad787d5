// Packs the samples of a plan's microbatch for the model.
#pragma once

#include "absl/status/statusor.h"
#include "core/data/token_file.h"
#include "core/plan/step/step_plan.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

// Packs samples in the plan's order, one sequence each. FailedPrecondition if the file does not
// match the plan (samples, tokens, targets): then coordinator and worker look at different data,
// and training on it would be silently wrong.
absl::StatusOr<PackedBatch> BuildBatch(const formats::TokenFile& file,
                                       const plan::Microbatch& microbatch);

}  // namespace shoal::worker
