// What the model takes of the device for itself, besides the activations and gradients of chunks
// (core/plan/memory/activation_bytes.h) and messages between them: the inputs of a step's
// microbatches, and scratch for one call at a time. Pure formulas, for a microbatch of `tokens`
// tokens, all of them targets, which is the most; tests/memory_plan_agreement_test.cc compares them
// with what the model allocates.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "core/plan/memory/loss_chunk.h"

namespace shoal::plan {

// Token ids, positions, targets and the loss.
int64_t MicrobatchInputBytes(int64_t tokens);
// Gradients within one block, [T, H] twice for those between blocks, and those of a block's
// activations that are not kept.
int64_t ChunkScratchBytes(const ModelSpec& spec, DType compute, Recompute recompute,
                          int64_t tokens);
// The final norm's output, its inverse rms, and partial sums of its weight's gradient.
int64_t NormScratchBytes(const ModelSpec& spec, DType compute, int64_t tokens);
// One chunk of rows at a time: fp32 logits, their gradient in compute type, and the rows
// themselves.
int64_t LogitBytes(const ModelSpec& spec, DType compute, int64_t tokens,
                   const LossChunk& loss_chunk = kCpuLossChunk);

// For a stage with or without the head, in a step with microbatches of these sizes.
int64_t StageOwnBytes(const ModelSpec& spec, DType compute, Recompute recompute, bool head,
                      std::span<const int64_t> tokens, const LossChunk& loss_chunk = kCpuLossChunk);

}  // namespace shoal::plan
