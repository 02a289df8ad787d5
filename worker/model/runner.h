// One microbatch through the whole model: the single chunk of a worker without a pipeline
// (chunk.h). get -> forward over the units, then get -> backward -> Done in reverse.
//
// The trainer calls RunMicrobatch for each microbatch of a step. Gradients are loss_scale * d(sum
// of the token losses) and are ADDED to the sink's accumulators, so microbatches and workers simply
// add up.
//
// Each unit is got once for forward and once for backward, but the head once for both, and the
// embedding not for its backward, which needs no weights; with tied embeddings the head also gets
// unit 0. Done is called for each unit, from the head down to the embedding, and with tied
// embeddings for unit 0 after the head as well: its two contributions (unit_access.h).
//
// Failure: errors of source and sink are returned at once (releasing the units held). The
// accumulators then hold a part of the gradient, and the whole attempt must be dropped.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "worker/model/access/unit_access.h"
#include "worker/model/batch/batch.h"
#include "worker/model/transformer.h"

namespace shoal::worker {

// `recompute` changes what is kept for the backward, but no bit of the results.
absl::StatusOr<MicrobatchResult> RunMicrobatch(Transformer& model, const PackedBatch& batch,
                                               double loss_scale, UnitSource& source,
                                               GradientSink& sink,
                                               plan::Recompute recompute = plan::Recompute::kNone);

// Returns the bytes that RunMicrobatch takes for a microbatch of that many tokens, all of which
// have a target: what planning counts for a worker, besides weights, gradients and the model's
// rotary tables.
int64_t MicrobatchBytes(const plan::ModelSpec& spec, DType compute, int64_t tokens,
                        const plan::LossChunk& loss_chunk = plan::kCpuLossChunk,
                        plan::Recompute recompute = plan::Recompute::kNone);

// Runs only forward and loss.
absl::StatusOr<MicrobatchResult> EvaluateLoss(Transformer& model, const PackedBatch& batch,
                                              UnitSource& source);

// Returns logits [positions.size(), vocabulary] in fp32 at the given positions of the batch.
absl::StatusOr<std::vector<float>> ComputeLogits(Transformer& model, const PackedBatch& batch,
                                                 std::span<const int32_t> positions,
                                                 UnitSource& source);

}  // namespace shoal::worker
