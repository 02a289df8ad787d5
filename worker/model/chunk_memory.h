// Where a chunk keeps a microbatch's data in memory: its activations, from forward to the end of
// the backward; its gradients, from a split B to its W; and the scratch that a call needs while it
// runs. core/plan/memory/activation_bytes.h says what is kept at which recompute, and how many
// bytes that is; tests compare the two.
//
// Places follow only from the base pointers, so either part may be moved as a whole between calls.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/activation_bytes.h"
#include "worker/model/block.h"
#include "worker/model/head.h"
#include "worker/model/workspace.h"

namespace shoal::worker {

// Enough for any chunk of a stage; serves one call at a time.
struct ChunkScratch {
  std::byte* activations = nullptr;  // of one block: those that are not kept
  std::byte* gradients = nullptr;    // of one block
  Matrix d_hidden[2];                // [T, H]: gradients between blocks, alternating
  HeadScratch head;                  // if one of the chunks has the head

  // `head`: null if no chunk has the head.
  static ChunkScratch Carve(Carver& carver, const plan::ModelSpec& spec, DType compute,
                            plan::Recompute recompute, int64_t rows, int64_t targets,
                            const plan::LossChunk* head);
};

class ChunkMemory {
 public:
  ChunkMemory(const plan::ModelSpec& spec, DType compute, plan::UnitRange units,
              plan::Recompute recompute, int64_t rows)
      : spec_(spec), compute_(compute), units_(units), recompute_(recompute), rows_(rows) {}

  plan::ChunkBytes bytes() const;
  struct BlockBytes {
    int64_t activations = 0;
    int64_t gradients = 0;
  };
  BlockBytes ScratchBytes() const;

  // For a block unit, in forward and in a joined backward.
  BlockActivations Activations(int unit, std::byte* activations, const ChunkScratch& scratch) const;
  BlockGradients Gradients(const ChunkScratch& scratch) const;  // all but `output`

  // For a block unit in a split backward: W finds what it needs in activations and gradients, and
  // nothing in scratch.
  struct Split {
    BlockActivations activations;
    BlockGradients gradients;
  };
  Split SplitBackward(int unit, std::byte* activations, std::byte* gradients,
                      const ChunkScratch& scratch) const;
  // Gradient of the output of a block or the embedding, in a split backward.
  Matrix OutputGradient(int unit, std::byte* gradients) const;

  Matrix Last(std::byte* activations) const;  // the head's input
  Matrix Message(std::byte* data) const {
    return Matrix::Dense(data, compute_, rows_, spec_.hidden);
  }
  ConstMatrix Message(const std::byte* data) const {
    return ConstMatrix::Dense(data, compute_, rows_, spec_.hidden);
  }

 private:
  int first_block() const { return units_.contains(0) ? 1 : units_.first; }
  int blocks() const;
  bool has_head() const { return units_.contains(static_cast<int>(spec_.layers) + 1); }
  // Of the activations that are not kept, `left` gets those that W needs, `scratch` those that only
  // B needs.
  BlockActivations TakeActivations(Carver& kept, Carver& left, Carver& scratch) const;
  Split TakeSplit(Carver& kept, Carver& left, Carver& scratch_activations,
                  Carver& scratch_gradients) const;
  BlockBytes KeptBytes() const;  // of a block

  const plan::ModelSpec& spec_;
  const DType compute_;
  const plan::UnitRange units_;
  const plan::Recompute recompute_;
  const int64_t rows_;
};

}  // namespace shoal::worker
