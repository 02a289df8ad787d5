#include "worker/model/runner.h"

#include <optional>
#include <utility>

#include "common/status.h"
#include "worker/model/forward.h"

namespace shoal::worker {
namespace {

// The head's matrix belongs to the head's unit, or to the embedding's where they are tied.
absl::StatusOr<std::optional<HeldUnit>> GetTiedMatrix(Transformer& model, UnitSource& source) {
  if (!model.spec().tied_embeddings) {
    return std::optional<HeldUnit>();
  }
  SHOAL_ASSIGN_OR_RETURN(HeldUnit tied, HeldUnit::Get(model, source, 0));
  return std::optional<HeldUnit>(std::move(tied));
}

ConstMatrix HeadMatrix(Transformer& model, const HeldUnit& head,
                       const std::optional<HeldUnit>& tied) {
  const plan::ModelSpec& spec = model.spec();
  return (tied ? *tied : head).matrix(model.head_matrix_offset(), spec.vocabulary, spec.hidden);
}

absl::StatusOr<double> ReadLoss(Transformer& model, const MicrobatchMemory& memory) {
  double loss = 0;
  model.ops().stream().Copy(&loss, memory.loss_sum, sizeof(loss));
  SHOAL_RETURN_IF_ERROR(model.ops().stream().Synchronize());
  return loss;
}

MicrobatchResult ResultOf(const PreparedMicrobatch& microbatch, double loss) {
  return {
      .loss_sum = loss, .targets = microbatch.targets.count(), .tokens = microbatch.token_count};
}

// The accumulator, of the right size.
absl::StatusOr<float*> AccumulatorOf(Transformer& model, GradientSink& sink, int unit) {
  SHOAL_ASSIGN_OR_RETURN(const std::span<float> accumulator, sink.Accumulator(unit));
  const plan::UnitSpec& expected = model.units()[static_cast<size_t>(unit)];
  if (static_cast<int64_t>(accumulator.size()) != expected.count) {
    return FailedPrecondition("unit {}: the gradient's accumulator has {} elements, the unit {}",
                              expected.name, accumulator.size(), expected.count);
  }
  return accumulator.data();
}

// The gradient is complete once the device has done all work on it.
absl::Status Done(Transformer& model, GradientSink& sink, int unit) {
  SHOAL_RETURN_IF_ERROR(model.ops().Finish());
  return sink.Done(unit);
}

// Loss, and backward down to the last block's output: its gradient is in memory.d_hidden[0].
absl::Status RunHead(Transformer& model, const PreparedMicrobatch& microbatch, double loss_scale,
                     UnitSource& source, GradientSink& sink) {
  const MicrobatchMemory& memory = microbatch.memory;
  SHOAL_ASSIGN_OR_RETURN(const HeldUnit head, HeldUnit::Get(model, source, model.head_unit()));
  SHOAL_ASSIGN_OR_RETURN(const std::optional<HeldUnit> tied, GetTiedMatrix(model, source));
  SHOAL_ASSIGN_OR_RETURN(float* const accumulator, AccumulatorOf(model, sink, model.head_unit()));
  SHOAL_ASSIGN_OR_RETURN(float* const matrix_accumulator,
                         AccumulatorOf(model, sink, model.head_matrix_unit()));
  ForwardNorm(model, memory, head);
  const Matrix d_normed = memory.d_hidden[1];
  LinearCrossEntropy(model.ops(), memory.normed, HeadMatrix(model, head, tied), microbatch.targets,
                     static_cast<float>(loss_scale), memory.chunk, d_normed,
                     matrix_accumulator + model.head_matrix_offset(), memory.loss_sum);
  model.ops().RmsNormBackwardInput(d_normed, memory.last, head.vector(0, model.spec().hidden),
                                   memory.inverse_rms, ConstMatrix(), memory.d_hidden[0]);
  model.ops().RmsNormBackwardWeight(d_normed, memory.last, memory.inverse_rms, accumulator);
  return Done(model, sink, model.head_unit());
}

}  // namespace

absl::StatusOr<MicrobatchResult> RunMicrobatch(Transformer& model, const PackedBatch& batch,
                                               double loss_scale, UnitSource& source,
                                               GradientSink& sink) {
  SHOAL_ASSIGN_OR_RETURN(const PreparedMicrobatch microbatch,
                         Prepare(model, batch, /*training=*/true));
  const MicrobatchMemory& memory = microbatch.memory;
  SHOAL_RETURN_IF_ERROR(ForwardBlocks(model, microbatch, source));
  SHOAL_RETURN_IF_ERROR(RunHead(model, microbatch, loss_scale, source, sink));

  BlockGradients gradients = memory.gradients;
  Matrix d_output = memory.d_hidden[0];
  Matrix d_input = memory.d_hidden[1];
  for (size_t i = memory.blocks.size(); i-- > 0;) {
    const int unit = static_cast<int>(i) + 1;
    SHOAL_ASSIGN_OR_RETURN(float* const accumulator, AccumulatorOf(model, sink, unit));
    gradients.output = d_output;
    {
      SHOAL_ASSIGN_OR_RETURN(const HeldUnit weights, HeldUnit::Get(model, source, unit));
      BlockBackwardInput(model.ops(), weights.block(model), microbatch.sequences, memory.blocks[i],
                         gradients, d_input);
    }
    BlockBackwardWeights(model.ops(), model.spec(), model.layout(), memory.blocks[i], gradients,
                         accumulator);
    SHOAL_RETURN_IF_ERROR(Done(model, sink, unit));
    std::swap(d_output, d_input);
  }

  SHOAL_ASSIGN_OR_RETURN(float* const accumulator, AccumulatorOf(model, sink, 0));
  model.ops().EmbeddingBackward(
      memory.tokens, microbatch.token_count, d_output,
      Matrix::Dense(accumulator, DType::kF32, model.spec().vocabulary, model.spec().hidden));
  SHOAL_RETURN_IF_ERROR(Done(model, sink, 0));
  SHOAL_ASSIGN_OR_RETURN(const double loss, ReadLoss(model, memory));
  return ResultOf(microbatch, loss);
}

absl::StatusOr<MicrobatchResult> EvaluateLoss(Transformer& model, const PackedBatch& batch,
                                              UnitSource& source) {
  SHOAL_ASSIGN_OR_RETURN(const PreparedMicrobatch microbatch,
                         Prepare(model, batch, /*training=*/false));
  const MicrobatchMemory& memory = microbatch.memory;
  SHOAL_RETURN_IF_ERROR(ForwardBlocks(model, microbatch, source));
  SHOAL_ASSIGN_OR_RETURN(const HeldUnit head, HeldUnit::Get(model, source, model.head_unit()));
  SHOAL_ASSIGN_OR_RETURN(const std::optional<HeldUnit> tied, GetTiedMatrix(model, source));
  ForwardNorm(model, memory, head);
  LinearCrossEntropy(model.ops(), memory.normed, HeadMatrix(model, head, tied), microbatch.targets,
                     0.0f, memory.chunk, Matrix(), nullptr, memory.loss_sum);
  SHOAL_RETURN_IF_ERROR(model.ops().Finish());
  SHOAL_ASSIGN_OR_RETURN(const double loss, ReadLoss(model, memory));
  return ResultOf(microbatch, loss);
}

absl::StatusOr<std::vector<float>> ComputeLogits(Transformer& model, const PackedBatch& batch,
                                                 std::span<const int32_t> positions,
                                                 UnitSource& source) {
  for (const int32_t position : positions) {
    if (position < 0 || position >= batch.token_count()) {
      return OutOfRange("logits of position {}: the batch has {} tokens", position,
                        batch.token_count());
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const PreparedMicrobatch microbatch,
                         Prepare(model, batch, /*training=*/false));
  const MicrobatchMemory& memory = microbatch.memory;
  SHOAL_RETURN_IF_ERROR(ForwardBlocks(model, microbatch, source));
  SHOAL_ASSIGN_OR_RETURN(const HeldUnit head, HeldUnit::Get(model, source, model.head_unit()));
  SHOAL_ASSIGN_OR_RETURN(const std::optional<HeldUnit> tied, GetTiedMatrix(model, source));
  ForwardNorm(model, memory, head);
  std::vector<float> logits;
  for (const int32_t position : positions) {
    const Matrix row = memory.chunk.logits.Rows(0, 1);
    model.ops().Matmul({.a = memory.normed.Rows(position, 1),
                        .b = HeadMatrix(model, head, tied),
                        .c = row,
                        .transpose_b = true});
    SHOAL_RETURN_IF_ERROR(model.ops().Finish());
    logits.resize(logits.size() + static_cast<size_t>(row.columns));
    model.ops().stream().Copy(logits.data() + logits.size() - row.columns, row.data,
                              row.columns * 4);
    SHOAL_RETURN_IF_ERROR(model.ops().stream().Synchronize());
  }
  return logits;
}

}  // namespace shoal::worker
