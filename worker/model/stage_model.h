// What a stage of a pipeline computes, chunk by chunk: the seam between the mathematics and the
// runtime that executes a schedule. The transformer implements it (transformer_stage.h), and so
// does an emulated device (worker/paced).
//
// Memory belongs to the caller.
// - Each call gets a chunk's activations and gradients of a microbatch as plain pointers, with as
//   many bytes as BytesOf says and aligned to kBufferAlignment. They may move between calls, since
//   a reload brings them back to another place, but must hold what the previous call left there.
// - Messages ([rows, hidden] of the compute type, with rows the tokens rounded up to 64) are only
//   needed while a call runs; a call writes its output message whole.
// - The model holds what it needs for the current work, sized in BeginStep.
//
// Calls. For each chunk and microbatch: Forward, then either Backward, or BackwardInput and at any
// later time BackwardWeights, or nothing (of the chunk with the head Loss). Neither the choice nor
// the order of microbatches changes a bit of the results.
// - A unit's weights are got from the source when they are reached and released afterwards;
//   BackwardWeights needs none.
// - A gradient is requested and finished within one call: a unit's in BackwardWeights or Backward,
//   the head's in its chunk's BackwardInput or Backward, where loss and gradients of the head are
//   computed together.
// - With tied embeddings the head's gradient of the embedding's matrix and the embedding's own are
//   two contributions to unit 0, each with its own Done.
//
// Completion. Calls return when their work is on the model's single compute stream, which the
// caller knows, and EndStep when it is done: memory passed to a call is in use until the stream has
// finished. On the CPU, and on emulated devices, the work is done when the call returns.
//
// For one thread. Failures of source and sink are returned with nothing held; the whole step must
// then be dropped, and memory freed once the stream has finished.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/activation_bytes.h"
#include "worker/model/access/unit_access.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

class StageModel {
 public:
  virtual ~StageModel() = default;
  // The model whose weights travel: the whole model, not only the stage's part.
  virtual const plan::ModelSpec& spec() const = 0;
  virtual const std::vector<plan::UnitSpec>& units() const = 0;

  // The step's microbatches, in the schedule's numbering; they are not needed after the call, but
  // source and sink are until the next one. InvalidArgument for an invalid microbatch,
  // ResourceExhausted if the stage's own needs do not fit.
  virtual absl::Status BeginStep(std::span<const PackedBatch> microbatches, double loss_scale,
                                 UnitSource& source, GradientSink& sink) = 0;
  virtual plan::ChunkBytes BytesOf(int chunk, int microbatch) const = 0;

  // `input` is null if the chunk has the embedding, `output` if it has the head.
  virtual absl::Status Forward(int chunk, int microbatch, std::byte* activations,
                               const std::byte* input, std::byte* output) = 0;
  // `d_output` is null if the chunk has the head, `d_input` if it has the embedding.
  virtual absl::Status BackwardInput(int chunk, int microbatch, std::byte* activations,
                                     std::byte* gradients, const std::byte* d_output,
                                     std::byte* d_input) = 0;
  virtual absl::Status BackwardWeights(int chunk, int microbatch, std::byte* activations,
                                       std::byte* gradients) = 0;
  virtual absl::Status Backward(int chunk, int microbatch, std::byte* activations,
                                const std::byte* d_output, std::byte* d_input) = 0;

  // After the Forward of the chunk with the head, where no backward follows: takes the loss.
  virtual absl::Status Loss(int chunk, int microbatch, std::byte* activations) = 0;

  // Waits for all work of the step's calls; returns what failed.
  virtual absl::Status EndStep() = 0;
  // After EndStep, for a microbatch whose backward or Loss has run: the loss if the stage has the
  // head (else 0), counts everywhere.
  virtual MicrobatchResult result(int microbatch) const = 0;
};

}  // namespace shoal::worker
