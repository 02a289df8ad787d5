// The transformer as a stage of a pipeline: the StageModel over its chunks.
//
// BeginStep takes what it needs for itself from the model's device: the inputs of the step's
// microbatches, and scratch for one call on the largest of them. Both are kept from step to step
// and grow when a step needs more.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/model/recompute.h"
#include "core/plan/schedule/layer_split.h"
#include "worker/model/chunk.h"
#include "worker/model/stage_model.h"
#include "worker/model/transformer.h"
#include "worker/model/workspace.h"

namespace shoal::worker {

class TransformerStage final : public StageModel {
 public:
  // `chunks` by number: the units of the stage's virtual stages.
  TransformerStage(std::unique_ptr<Transformer> model, std::span<const plan::UnitRange> chunks,
                   plan::Recompute recompute);
  // Waits for what is on the compute stream.
  ~TransformerStage() override;

  const plan::ModelSpec& spec() const override { return model_->spec(); }
  const std::vector<plan::UnitSpec>& units() const override { return model_->units(); }
  absl::Status BeginStep(std::span<const PackedBatch> microbatches, double loss_scale,
                         UnitSource& source, GradientSink& sink) override;
  plan::ChunkBytes BytesOf(int chunk, int microbatch) const override;
  absl::Status Forward(int chunk, int microbatch, std::byte* activations, const std::byte* input,
                       std::byte* output) override;
  absl::Status BackwardInput(int chunk, int microbatch, std::byte* activations,
                             std::byte* gradients, const std::byte* d_output,
                             std::byte* d_input) override;
  absl::Status BackwardWeights(int chunk, int microbatch, std::byte* activations,
                               std::byte* gradients) override;
  absl::Status Backward(int chunk, int microbatch, std::byte* activations,
                        const std::byte* d_output, std::byte* d_input) override;
  absl::Status Loss(int chunk, int microbatch, std::byte* activations) override;
  absl::Status EndStep() override;
  MicrobatchResult result(int microbatch) const override;

  bool has_head() const;

  // Taken from the device: inputs and scratch.
  int64_t own_bytes() const { return inputs_memory_.bytes() + scratch_memory_.bytes(); }

 private:
  const Chunk& ChunkAt(int chunk) const { return chunks_[static_cast<size_t>(chunk)]; }
  const MicrobatchInput& InputOf(int microbatch) const {
    return inputs_[static_cast<size_t>(microbatch)];
  }
  ChunkScratch CarveScratch(Carver& carver, const MicrobatchInput& microbatch) const;
  absl::Status TakeMemory();
  ChunkCall CallOf(int microbatch) const;

  const std::unique_ptr<Transformer> model_;
  const plan::Recompute recompute_;
  std::vector<Chunk> chunks_;
  Workspace inputs_memory_;
  Workspace scratch_memory_;
  // For the current step:
  std::vector<MicrobatchInput> inputs_;
  std::vector<double> losses_;
  std::byte* scratch_ = nullptr;
  double loss_scale_ = 0;
  UnitSource* source_ = nullptr;
  GradientSink* sink_ = nullptr;
};

}  // namespace shoal::worker
