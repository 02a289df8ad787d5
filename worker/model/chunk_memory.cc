#include "worker/model/chunk_memory.h"

#include <algorithm>

namespace shoal::worker {

ChunkScratch ChunkScratch::Carve(Carver& carver, const plan::ModelSpec& spec, DType compute,
                                 plan::Recompute recompute, int64_t rows, int64_t targets,
                                 const plan::LossChunk* head) {
  ChunkScratch s;
  const ChunkMemory block(spec, compute, {1, 1}, recompute, rows);
  const auto [activations, gradients] = block.ScratchBytes();
  s.activations = carver.Take(activations);
  s.gradients = carver.Take(gradients);
  for (Matrix& d_hidden : s.d_hidden) {
    d_hidden = carver.TakeMatrix(compute, rows, spec.hidden);
  }
  if (head != nullptr) {
    s.head = HeadScratch::Carve(carver, spec, compute, rows, targets, *head);
  }
  return s;
}

BlockActivations ChunkMemory::TakeActivations(Carver& kept, Carver& left, Carver& scratch) const {
  const bool all_but_outputs = recompute_ != plan::Recompute::kFull;
  return BlockActivations::Carve({.input = kept,
                                  .outputs = recompute_ == plan::Recompute::kNone ? kept : left,
                                  .attention = all_but_outputs ? kept : left,
                                  .rest = all_but_outputs ? kept : scratch,
                                  .scratch = scratch},
                                 spec_, compute_, rows_);
}

ChunkMemory::Split ChunkMemory::TakeSplit(Carver& kept, Carver& left, Carver& scratch_activations,
                                          Carver& scratch_gradients) const {
  const Matrix output = left.TakeMatrix(compute_, rows_, spec_.hidden);
  Split split{.activations = TakeActivations(kept, left, scratch_activations),
              .gradients = BlockGradients::Carve(left, scratch_gradients, spec_, compute_, rows_)};
  split.gradients.output = output;
  return split;
}

ChunkMemory::BlockBytes ChunkMemory::KeptBytes() const {
  Carver kept(nullptr), left(nullptr), scratch(nullptr);
  TakeSplit(kept, left, scratch, scratch);
  return {.activations = kept.bytes(), .gradients = left.bytes()};
}

ChunkMemory::BlockBytes ChunkMemory::ScratchBytes() const {
  Carver kept(nullptr), activations(nullptr), gradients(nullptr);
  TakeActivations(kept, activations, activations);
  BlockGradients::Carve(gradients, gradients, spec_, compute_, rows_);
  return {.activations = activations.bytes(), .gradients = gradients.bytes()};
}

plan::ChunkBytes ChunkMemory::bytes() const {
  Carver measure(nullptr);
  measure.TakeMatrix(compute_, rows_, spec_.hidden);
  const int64_t message = measure.bytes();
  const BlockBytes block = KeptBytes();
  return {.activations = blocks() * block.activations + (has_head() ? message : 0),
          .gradients = blocks() * block.gradients + (units_.contains(0) ? message : 0),
          .message = message};
}

int ChunkMemory::blocks() const {
  return std::min(units_.end(), static_cast<int>(spec_.layers) + 1) - first_block();
}

BlockActivations ChunkMemory::Activations(int unit, std::byte* activations,
                                          const ChunkScratch& scratch) const {
  Carver kept(activations + (unit - first_block()) * KeptBytes().activations);
  Carver not_kept(scratch.activations);
  return TakeActivations(kept, not_kept, not_kept);
}

BlockGradients ChunkMemory::Gradients(const ChunkScratch& scratch) const {
  Carver carver(scratch.gradients);
  return BlockGradients::Carve(carver, carver, spec_, compute_, rows_);
}

ChunkMemory::Split ChunkMemory::SplitBackward(int unit, std::byte* activations,
                                              std::byte* gradients,
                                              const ChunkScratch& scratch) const {
  const BlockBytes block = KeptBytes();
  Carver kept(activations + (unit - first_block()) * block.activations);
  Carver left(gradients + (unit - first_block()) * block.gradients);
  Carver scratch_activations(scratch.activations);
  Carver scratch_gradients(scratch.gradients);
  return TakeSplit(kept, left, scratch_activations, scratch_gradients);
}

Matrix ChunkMemory::OutputGradient(int unit, std::byte* gradients) const {
  // A block's comes first in its part; the embedding's comes after the blocks.
  const int before = unit == 0 ? blocks() : unit - first_block();
  return Message(gradients + before * KeptBytes().gradients);
}

Matrix ChunkMemory::Last(std::byte* activations) const {
  return Message(activations + blocks() * KeptBytes().activations);
}

}  // namespace shoal::worker
