// A chunk: a run of the model's units that are computed together. A stage of a pipeline holds
// several; a worker without a pipeline holds all units in one.
//
// Forward, backward for the input (B) and backward for the weights (W) are three calls, with others
// possibly in between; Backward is the last two in one, with one block's gradients at a time.
// Either way, and with any recompute, the bits are the same. What stage_model.h says about memory,
// messages, gets, accumulators and failures applies here.
//
// One call at a time uses the model (operators, rotary table).
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "core/model/recompute.h"
#include "core/plan/schedule/layer_split.h"
#include "worker/model/access/unit_access.h"
#include "worker/model/chunk_memory.h"
#include "worker/model/microbatch_input.h"
#include "worker/model/transformer.h"

namespace shoal::worker {

// What a call works with, besides its memory.
struct ChunkCall {
  const MicrobatchInput& microbatch;  // loaded
  double loss_scale;
  ChunkScratch scratch;  // for the microbatch's rows, including the head's if it is here
  UnitSource& source;
  GradientSink& sink;
};

class Chunk {
 public:
  Chunk(Transformer& model, plan::UnitRange units, plan::Recompute recompute);

  plan::UnitRange units() const { return units_; }
  bool has_embedding() const { return units_.contains(0); }
  bool has_head() const { return units_.contains(model_.head_unit()); }
  plan::ChunkBytes BytesOf(const MicrobatchInput& microbatch) const;

  absl::Status Forward(const ChunkCall& call, std::byte* activations, const std::byte* input,
                       std::byte* output) const;
  // Of a chunk with the head, where no backward follows.
  absl::Status Loss(const ChunkCall& call, std::byte* activations) const;
  absl::Status BackwardInput(const ChunkCall& call, std::byte* activations, std::byte* gradients,
                             const std::byte* d_output, std::byte* d_input) const;
  absl::Status BackwardWeights(const ChunkCall& call, std::byte* activations,
                               std::byte* gradients) const;
  absl::Status Backward(const ChunkCall& call, std::byte* activations, const std::byte* d_output,
                        std::byte* d_input) const;

 private:
  ChunkMemory MemoryOf(const MicrobatchInput& microbatch) const;
  // The head, if it is here: computes the gradient of its input, d_last.
  absl::Status BackwardHead(const ChunkCall& call, ConstMatrix last, Matrix d_last) const;
  // B of one block, after recomputing what forward did not keep.
  absl::Status BackwardBlockInput(const ChunkCall& call, int unit, const BlockActivations& a,
                                  const BlockGradients& g, Matrix d_input) const;
  // W of one block and of its adapters, where their gradients are wanted.
  absl::Status AddBlockGradient(const ChunkCall& call, int unit, const BlockActivations& a,
                                const BlockGradients& g, const UnitGradient& gradient) const;
  absl::Status BackwardEmbedding(const ChunkCall& call, ConstMatrix d_output) const;
  // The units without the head.
  plan::UnitRange body() const;

  Transformer& model_;
  const plan::UnitRange units_;
  const plan::Recompute recompute_;
};

}  // namespace shoal::worker
