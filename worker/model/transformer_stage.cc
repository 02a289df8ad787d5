#include "worker/model/transformer_stage.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace shoal::worker {

TransformerStage::TransformerStage(std::unique_ptr<Transformer> model,
                                   std::span<const plan::UnitRange> chunks,
                                   plan::Recompute recompute)
    : model_(std::move(model)),
      recompute_(recompute),
      inputs_memory_(model_->device(), model_->ops().stream()),
      scratch_memory_(model_->device(), model_->ops().stream()) {
  for (const plan::UnitRange& units : chunks) {
    chunks_.emplace_back(*model_, units, recompute);
  }
}

TransformerStage::~TransformerStage() { model_->ops().stream().Synchronize().IgnoreError(); }

absl::Status TransformerStage::BeginStep(std::span<const PackedBatch> microbatches,
                                         double loss_scale, UnitSource& source,
                                         GradientSink& sink) {
  inputs_.clear();
  for (size_t i = 0; i < microbatches.size(); ++i) {
    auto input = MicrobatchInput::Create(microbatches[i], spec().vocabulary);
    if (!input.ok()) {
      return Annotate(input.status(), fmt::format("microbatch {} of the step", i));
    }
    SHOAL_RETURN_IF_ERROR(model_->rotary().Reserve(input->longest(), model_->ops().stream()));
    inputs_.push_back(*std::move(input));
  }
  SHOAL_RETURN_IF_ERROR(TakeMemory());
  for (MicrobatchInput& input : inputs_) {
    input.Load(model_->ops().stream());
  }
  losses_.assign(inputs_.size(), 0.0);
  loss_scale_ = loss_scale;
  source_ = &source;
  sink_ = &sink;
  return absl::OkStatus();
}

absl::Status TransformerStage::TakeMemory() {
  int64_t scratch_bytes = 0;
  for (const MicrobatchInput& input : inputs_) {
    Carver measure(nullptr);
    CarveScratch(measure, input);
    scratch_bytes = std::max(scratch_bytes, measure.bytes());
  }
  SHOAL_ASSIGN_OR_RETURN(
      scratch_, scratch_memory_.Fill([&](Carver& carver) { return carver.Take(scratch_bytes); }));
  const auto carved = inputs_memory_.Fill([&](Carver& carver) {
    for (MicrobatchInput& input : inputs_) {
      input.Carve(carver);
    }
    return true;
  });
  return carved.status();
}

ChunkScratch TransformerStage::CarveScratch(Carver& carver,
                                            const MicrobatchInput& microbatch) const {
  return ChunkScratch::Carve(carver, spec(), model_->compute(), recompute_, microbatch.rows(),
                             microbatch.target_count(),
                             has_head() ? &model_->loss_chunk() : nullptr);
}

bool TransformerStage::has_head() const {
  return std::ranges::any_of(chunks_, [](const Chunk& chunk) { return chunk.has_head(); });
}

plan::ChunkBytes TransformerStage::BytesOf(int chunk, int microbatch) const {
  return ChunkAt(chunk).BytesOf(InputOf(microbatch));
}

ChunkCall TransformerStage::CallOf(int microbatch) const {
  Carver carver(scratch_);
  return {.microbatch = InputOf(microbatch),
          .loss_scale = loss_scale_,
          .scratch = CarveScratch(carver, InputOf(microbatch)),
          .source = *source_,
          .sink = *sink_};
}

absl::Status TransformerStage::Forward(int chunk, int microbatch, std::byte* activations,
                                       const std::byte* input, std::byte* output) {
  return ChunkAt(chunk).Forward(CallOf(microbatch), activations, input, output);
}

absl::Status TransformerStage::BackwardInput(int chunk, int microbatch, std::byte* activations,
                                             std::byte* gradients, const std::byte* d_output,
                                             std::byte* d_input) {
  return ChunkAt(chunk).BackwardInput(CallOf(microbatch), activations, gradients, d_output,
                                      d_input);
}

absl::Status TransformerStage::BackwardWeights(int chunk, int microbatch, std::byte* activations,
                                               std::byte* gradients) {
  return ChunkAt(chunk).BackwardWeights(CallOf(microbatch), activations, gradients);
}

absl::Status TransformerStage::Backward(int chunk, int microbatch, std::byte* activations,
                                        const std::byte* d_output, std::byte* d_input) {
  return ChunkAt(chunk).Backward(CallOf(microbatch), activations, d_output, d_input);
}

absl::Status TransformerStage::Loss(int chunk, int microbatch, std::byte* activations) {
  return ChunkAt(chunk).Loss(CallOf(microbatch), activations);
}

absl::Status TransformerStage::EndStep() {
  if (has_head()) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      model_->ops().stream().Copy(&losses_[i], inputs_[i].loss_sum(), sizeof(losses_[i]));
    }
  }
  SHOAL_RETURN_IF_ERROR(model_->ops().stream().Synchronize());
  return model_->ops().Check();
}

MicrobatchResult TransformerStage::result(int microbatch) const {
  return InputOf(microbatch).ResultOf(losses_[static_cast<size_t>(microbatch)]);
}

}  // namespace shoal::worker
