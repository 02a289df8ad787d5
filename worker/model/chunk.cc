#include "worker/model/chunk.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"
#include "worker/model/forward.h"

namespace shoal::worker {

Chunk::Chunk(Transformer& model, plan::UnitRange units, plan::Recompute recompute)
    : model_(model), units_(units), recompute_(recompute) {
  SHOAL_CHECK(units.first >= 0 && units.count > 0 && units.end() <= model.head_unit() + 1);
}

plan::UnitRange Chunk::body() const { return {units_.first, units_.count - (has_head() ? 1 : 0)}; }

ChunkMemory Chunk::MemoryOf(const MicrobatchInput& microbatch) const {
  return ChunkMemory(model_.spec(), model_.compute(), units_, recompute_, microbatch.rows());
}

plan::ChunkBytes Chunk::BytesOf(const MicrobatchInput& microbatch) const {
  return MemoryOf(microbatch).bytes();
}

absl::Status Chunk::Forward(const ChunkCall& call, std::byte* activations, const std::byte* input,
                            std::byte* output) const {
  SHOAL_CHECK((input == nullptr) == has_embedding() && (output == nullptr) == has_head());
  const ChunkMemory memory = MemoryOf(call.microbatch);
  const auto activations_of = [&](int unit) {
    return memory.Activations(unit, activations, call.scratch);
  };
  const Matrix end = has_head() ? memory.Last(activations) : memory.Message(output);
  if (!has_embedding()) {
    const Matrix begin = body().count > 0 ? activations_of(units_.first).input : end;
    model_.ops().stream().Copy(begin.data, input, memory.bytes().message);
  }
  return ForwardUnits(model_, call.microbatch, call.source, body(), activations_of, end);
}

absl::Status Chunk::Loss(const ChunkCall& call, std::byte* activations) const {
  SHOAL_CHECK(has_head());
  return HeadLoss(model_, call.microbatch, call.source, MemoryOf(call.microbatch).Last(activations),
                  call.scratch.head);
}

absl::Status Chunk::Backward(const ChunkCall& call, std::byte* activations,
                             const std::byte* d_output, std::byte* d_input) const {
  SHOAL_CHECK((d_output == nullptr) == has_head() && (d_input == nullptr) == has_embedding());
  const ChunkMemory memory = MemoryOf(call.microbatch);
  ConstMatrix given = memory.Message(d_output);
  int turn = 0;
  // Where the gradient of the unit's input goes, which is passed to the previous unit.
  const auto input_gradient = [&](int unit) {
    if (unit == units_.first) {
      return memory.Message(d_input);
    }
    turn = 1 - turn;
    return call.scratch.d_hidden[turn];
  };
  if (has_head()) {
    const Matrix d_last = input_gradient(model_.head_unit());
    SHOAL_RETURN_IF_ERROR(BackwardHead(call, memory.Last(activations), d_last));
    given = d_last;
  }
  BlockGradients gradients = memory.Gradients(call.scratch);
  for (int unit = body().end() - 1; unit >= std::max(units_.first, 1); --unit) {
    const BlockActivations saved = memory.Activations(unit, activations, call.scratch);
    const Matrix d_in = input_gradient(unit);
    gradients.output = given;
    SHOAL_ASSIGN_OR_RETURN(const UnitGradient unit_gradient, GradientOf(model_, call.sink, unit));
    SHOAL_RETURN_IF_ERROR(BackwardBlockInput(call, unit, saved, gradients, d_in));
    SHOAL_RETURN_IF_ERROR(AddBlockGradient(call, unit, saved, gradients, unit_gradient));
    given = d_in;
  }
  return has_embedding() ? BackwardEmbedding(call, given) : model_.ops().Check();
}

absl::Status Chunk::BackwardInput(const ChunkCall& call, std::byte* activations,
                                  std::byte* gradients, const std::byte* d_output,
                                  std::byte* d_input) const {
  SHOAL_CHECK((d_output == nullptr) == has_head() && (d_input == nullptr) == has_embedding());
  const ChunkMemory memory = MemoryOf(call.microbatch);
  const auto input_gradient = [&](int unit) {
    return unit == units_.first ? memory.Message(d_input)
                                : memory.OutputGradient(unit - 1, gradients);
  };
  if (has_head()) {
    const int head = model_.head_unit();
    SHOAL_RETURN_IF_ERROR(BackwardHead(call, memory.Last(activations), input_gradient(head)));
  } else {
    const Matrix given = memory.OutputGradient(units_.end() - 1, gradients);
    model_.ops().stream().Copy(given.data, d_output, memory.bytes().message);
  }
  for (int unit = body().end() - 1; unit >= std::max(units_.first, 1); --unit) {
    const auto [saved, made] = memory.SplitBackward(unit, activations, gradients, call.scratch);
    SHOAL_RETURN_IF_ERROR(BackwardBlockInput(call, unit, saved, made, input_gradient(unit)));
  }
  return model_.ops().Check();
}

absl::Status Chunk::BackwardWeights(const ChunkCall& call, std::byte* activations,
                                    std::byte* gradients) const {
  const ChunkMemory memory = MemoryOf(call.microbatch);
  for (int unit = body().end() - 1; unit >= std::max(units_.first, 1); --unit) {
    const auto [saved, made] = memory.SplitBackward(unit, activations, gradients, call.scratch);
    SHOAL_ASSIGN_OR_RETURN(const UnitGradient unit_gradient, GradientOf(model_, call.sink, unit));
    SHOAL_RETURN_IF_ERROR(AddBlockGradient(call, unit, saved, made, unit_gradient));
  }
  return has_embedding() ? BackwardEmbedding(call, memory.OutputGradient(0, gradients))
                         : absl::OkStatus();
}

absl::Status Chunk::BackwardHead(const ChunkCall& call, ConstMatrix last, Matrix d_last) const {
  const Matrix(&d_hidden)[2] = call.scratch.d_hidden;
  const Matrix d_normed = d_last.data == d_hidden[0].data ? d_hidden[1] : d_hidden[0];
  return HeadBackward(model_, call.microbatch, call.loss_scale, call.source, call.sink, last,
                      call.scratch.head, d_normed, d_last);
}

absl::Status Chunk::BackwardBlockInput(const ChunkCall& call, int unit, const BlockActivations& a,
                                       const BlockGradients& g, Matrix d_input) const {
  const SequenceContext sequences = call.microbatch.sequences(model_.rotary(), unit);
  SHOAL_ASSIGN_OR_RETURN(const HeldBlock held, HeldBlock::Get(model_, call.source, unit));
  BlockBackwardInput(model_.ops(), held.weights(model_, call.microbatch.dropout(unit)), sequences,
                     a, recompute_, g, d_input);
  return absl::OkStatus();
}

absl::Status Chunk::AddBlockGradient(const ChunkCall& call, int unit, const BlockActivations& a,
                                     const BlockGradients& g, const UnitGradient& gradient) const {
  if (!gradient.sums.empty()) {
    BlockBackwardWeights(model_.ops(), model_.spec(), model_.layout(unit), a, g, gradient);
  }
  SHOAL_RETURN_IF_ERROR(ContributionDone(model_, call.sink, unit));
  const int adapters = model_.adapter_unit(unit);
  if (adapters < 0) {
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const UnitGradient of_adapters, GradientOf(model_, call.sink, adapters));
  if (!of_adapters.sums.empty()) {
    AdaptersBackwardWeights(model_.ops(), model_.layout(unit), model_.adapter_layout(unit),
                            call.microbatch.dropout(unit), a, g, of_adapters);
  }
  return ContributionDone(model_, call.sink, adapters);
}

absl::Status Chunk::BackwardEmbedding(const ChunkCall& call, ConstMatrix d_output) const {
  const plan::ModelSpec& spec = model_.spec();
  SHOAL_ASSIGN_OR_RETURN(const UnitGradient gradient, GradientOf(model_, call.sink, 0));
  if (gradient.sums.empty()) {
    return ContributionDone(model_, call.sink, 0);
  }
  if (gradient.empty) {  // rows of tokens that the microbatch does not have
    model_.ops().stream().Zero(gradient.sums.data(),
                               static_cast<int64_t>(gradient.sums.size_bytes()));
  }
  model_.ops().EmbeddingBackward(
      call.microbatch.token_ids(), call.microbatch.tokens(), d_output, model_.embedding_scale(),
      Matrix::Dense(gradient.sums.data(), DType::kF32, spec.vocabulary, spec.hidden));
  return ContributionDone(model_, call.sink, 0);
}

}  // namespace shoal::worker
