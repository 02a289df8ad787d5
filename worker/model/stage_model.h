// What a stage of a pipeline computes, chunk by chunk: the seam between the mathematics and the
// runtime that executes a schedule. The transformer implements it (transformer_stage.h), and an
// emulated device (worker/paced).
//
// Memory is the caller's. It gives a chunk's activations and gradients of a microbatch as plain
// pointers in each call, of as many bytes as BytesOf says and aligned to kBufferAlignment; they may
// be elsewhere from call to call, for an offload brings them back to another place, and what is in
// them must be what the call before left there. Messages ([rows, hidden] of the compute type, rows
// being the tokens rounded up to 64) are only needed while a call runs; those that a call writes
// are written whole. The model itself holds what it needs for the work at hand, sized in BeginStep.
//
// Of each chunk and microbatch: Forward, then either Backward, or BackwardInput and at any later
// time BackwardWeights. Whichever, and in whatever order microbatches come, the results have the
// same bits. A unit's weights are got from the source when they are reached and released after;
// BackwardWeights needs none. A gradient is asked for and done with within one call: of a unit in
// BackwardWeights or Backward, of the head in its chunk's BackwardInput or Backward, where loss and
// gradients of the head are made in one go. With tied embeddings the head's gradient of the
// embedding's matrix and the embedding's own are two contributions to unit 0, each with its Done.
//
// Calls return when their work is on the model's one compute stream, which the caller knows, and
// EndStep when it is done: memory that a call was given is in use until the stream has come to its
// end. On the CPU, and on emulated devices, it is done when the call returns. One thread. Failures
// of source and sink are passed on with nothing held; the step is then to be dropped whole, and
// memory given away once the stream is done with what it has.
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
  // Of the weights that travel: the whole model's, not the stage's alone.
  virtual const plan::ModelSpec& spec() const = 0;
  virtual const std::vector<plan::UnitSpec>& units() const = 0;

  // The step's microbatches, in the schedule's numbering; they are not needed after the call.
  // Source and sink are until the next one. InvalidArgument for a microbatch that is none,
  // ResourceExhausted where what the stage needs for itself does not fit.
  virtual absl::Status BeginStep(std::span<const PackedBatch> microbatches, double loss_scale,
                                 UnitSource& source, GradientSink& sink) = 0;
  virtual plan::ChunkBytes BytesOf(int chunk, int microbatch) const = 0;

  // `input` is null where the chunk has the embedding, `output` where it has the head.
  virtual absl::Status Forward(int chunk, int microbatch, std::byte* activations,
                               const std::byte* input, std::byte* output) = 0;
  // `d_output` is null where the chunk has the head, `d_input` where it has the embedding.
  virtual absl::Status BackwardInput(int chunk, int microbatch, std::byte* activations,
                                     std::byte* gradients, const std::byte* d_output,
                                     std::byte* d_input) = 0;
  virtual absl::Status BackwardWeights(int chunk, int microbatch, std::byte* activations,
                                       std::byte* gradients) = 0;
  virtual absl::Status Backward(int chunk, int microbatch, std::byte* activations,
                                const std::byte* d_output, std::byte* d_input) = 0;

  // Waits for all work of the step's calls. What failed of it.
  virtual absl::Status EndStep() = 0;
  // After EndStep, of a microbatch whose backward has run: the loss where the stage has the head
  // (else 0), counts everywhere.
  virtual MicrobatchResult result(int microbatch) const = 0;
};

}  // namespace shoal::worker
