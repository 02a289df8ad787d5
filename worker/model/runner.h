// One microbatch through the model: get -> forward over the units, then get -> backward -> Done in
// reverse.
//
// The trainer calls RunMicrobatch for each microbatch of a step. Gradients are loss_scale * d(sum
// of the token losses) and are ADDED into the sink's accumulators, so microbatches and workers
// simply add up. Each unit is got once for forward and once for backward; the embedding is not got
// for its backward, which needs no weights. With tied embeddings the head also gets unit 0 and adds
// its gradient into unit 0's accumulator; Done(0) comes once, after the embedding's backward. Done
// is called once per unit, from the head down to the embedding.
//
// Failure: the source's and sink's errors are passed on at once (units held are released); the
// accumulators then hold a part of the gradient, and the attempt is to be dropped whole.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/batch.h"
#include "worker/model/transformer.h"
#include "worker/model/unit_access.h"

namespace shoal::worker {

absl::StatusOr<MicrobatchResult> RunMicrobatch(Transformer& model, const PackedBatch& batch,
                                               double loss_scale, UnitSource& source,
                                               GradientSink& sink);

// Forward and loss alone.
absl::StatusOr<MicrobatchResult> EvaluateLoss(Transformer& model, const PackedBatch& batch,
                                              UnitSource& source);

// Logits [positions.size(), vocabulary] in fp32 at the given positions of the batch.
absl::StatusOr<std::vector<float>> ComputeLogits(Transformer& model, const PackedBatch& batch,
                                                 std::span<const int32_t> positions,
                                                 UnitSource& source);

}  // namespace shoal::worker
