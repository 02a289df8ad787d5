// The model's end: final norm, the head's matrix and the loss. Forward and backward run in one call
// (loss/linear_cross_entropy.h), so the head keeps nothing in between but its input. Of pairs
// (batch/batch_pairs.h) forward runs once more before, which says what each row counts for.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/memory/loss_chunk.h"
#include "worker/loss/linear_cross_entropy.h"
#include "worker/model/held_unit.h"
#include "worker/model/microbatch_input.h"

namespace shoal::worker {

// The head's weights. Its matrix belongs to the head's unit or, with tied embeddings, to the
// embedding's.
class HeldHead {
 public:
  static absl::StatusOr<HeldHead> Get(const Transformer& model, UnitSource& source);
  NormWeight norm() const;     // [H]
  ConstMatrix matrix() const;  // [V, H]

 private:
  HeldHead(const Transformer& model, HeldUnit head) : model_(&model), head_(std::move(head)) {}
  const Transformer* model_;
  HeldUnit head_;
  std::optional<HeldUnit> tied_;
};

struct HeadScratch {
  Matrix normed;                 // [T, H]
  float* inverse_rms = nullptr;  // [T]
  Matrix d_norm;                 // [plan::NormPartials(T), H], fp32
  CrossEntropyBuffers chunk;

  // For T rows, N of them targets.
  static HeadScratch Carve(Carver& carver, const plan::ModelSpec& spec, DType compute, int64_t rows,
                           int64_t targets, const plan::LossChunk& loss_chunk);
};

// last[T, H], the last block's output -> scratch.normed.
void ForwardNorm(Transformer& model, const HeldHead& head, ConstMatrix last,
                 const HeadScratch& scratch);

// ADDS only the loss to the microbatch's.
absl::Status HeadLoss(Transformer& model, const MicrobatchInput& microbatch, UnitSource& source,
                      ConstMatrix last, const HeadScratch& scratch);

// The loss, and backward down to d_last[T, H] (overwritten); d_normed[T, H] is scratch. Calls Done
// for the head and, with tied embeddings, for unit 0 after it, where their gradients are wanted.
absl::Status HeadBackward(Transformer& model, const MicrobatchInput& microbatch, double loss_scale,
                          UnitSource& source, GradientSink& sink, ConstMatrix last,
                          const HeadScratch& scratch, Matrix d_normed, Matrix d_last);

// Returns what HeadLoss and HeadBackward summed. Waits for all work on the compute stream.
absl::StatusOr<double> ReadLoss(Transformer& model, const MicrobatchInput& microbatch);

}  // namespace shoal::worker
