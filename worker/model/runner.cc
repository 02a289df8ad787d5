#include "worker/model/runner.h"

#include "core/base/status.h"
#include "core/plan/schedule/stage_units.h"
#include "worker/model/chunk.h"
#include "worker/model/forward.h"
#include "worker/model/head.h"

namespace shoal::worker {
namespace {

// The memory of one microbatch from start to end, except its input's.
struct TrainingMemory {
  std::byte* activations = nullptr;
  ChunkScratch scratch;

  static TrainingMemory Carve(Carver& carver, const plan::ModelSpec& spec, DType compute,
                              int64_t rows, int64_t targets, const plan::LossChunk& loss_chunk,
                              plan::Recompute recompute) {
    const ChunkMemory chunk(spec, compute, plan::AllUnits(spec), recompute, rows);
    TrainingMemory m;
    m.activations = carver.Take(chunk.bytes().activations);
    m.scratch = ChunkScratch::Carve(carver, spec, compute, recompute, rows, targets, &loss_chunk);
    return m;
  }
};

// Blocks alternate between one block's activations, and between two inputs.
struct EvaluationMemory {
  BlockActivations block;
  Matrix other_input;  // [T, H]
  Matrix last;         // [T, H]: the last block's output
  HeadScratch head;

  static EvaluationMemory Carve(Carver& carver, const plan::ModelSpec& spec, DType compute,
                                int64_t rows, int64_t targets, const plan::LossChunk& loss_chunk) {
    EvaluationMemory m;
    m.block = BlockActivations::Carve(carver, spec, compute, rows);
    m.other_input = carver.TakeMatrix(compute, rows, spec.hidden);
    m.last = carver.TakeMatrix(compute, rows, spec.hidden);
    m.head = HeadScratch::Carve(carver, spec, compute, rows, targets, loss_chunk);
    return m;
  }
  BlockActivations Of(int unit) const {
    BlockActivations activations = block;
    activations.input = unit % 2 == 1 ? block.input : other_input;
    return activations;
  }
};

// Takes the memory of a microbatch, and starts its copies to the device.
template <typename Memory, typename... More>
absl::StatusOr<Memory> Prepare(Transformer& model, MicrobatchInput& microbatch, More... more) {
  SHOAL_RETURN_IF_ERROR(model.rotary().Reserve(microbatch.longest(), model.ops().stream()));
  SHOAL_ASSIGN_OR_RETURN(const Memory memory, model.workspace().Fill([&](Carver& carver) {
    microbatch.Carve(carver);
    return Memory::Carve(carver, model.spec(), model.compute(), microbatch.rows(),
                         microbatch.target_count(), model.loss_chunk(), more...);
  }));
  microbatch.Load(model.ops().stream());
  return memory;
}

absl::StatusOr<MicrobatchResult> ResultOf(Transformer& model, const MicrobatchInput& microbatch) {
  SHOAL_ASSIGN_OR_RETURN(const double loss, ReadLoss(model, microbatch));
  return microbatch.ResultOf(loss);
}

absl::Status ForwardForEvaluation(Transformer& model, const MicrobatchInput& microbatch,
                                  UnitSource& source, const EvaluationMemory& memory) {
  return ForwardUnits(
      model, microbatch, source, {0, model.head_unit()}, [&](int unit) { return memory.Of(unit); },
      memory.last);
}

}  // namespace

absl::StatusOr<MicrobatchResult> RunMicrobatch(Transformer& model, const PackedBatch& batch,
                                               double loss_scale, UnitSource& source,
                                               GradientSink& sink, plan::Recompute recompute) {
  SHOAL_ASSIGN_OR_RETURN(MicrobatchInput microbatch,
                         MicrobatchInput::Create(batch, model.spec().vocabulary));
  SHOAL_ASSIGN_OR_RETURN(const TrainingMemory memory,
                         Prepare<TrainingMemory>(model, microbatch, recompute));
  const Chunk all(model, plan::AllUnits(model.spec()), recompute);
  const ChunkCall call{.microbatch = microbatch,
                       .loss_scale = loss_scale,
                       .scratch = memory.scratch,
                       .source = source,
                       .sink = sink};
  SHOAL_RETURN_IF_ERROR(all.Forward(call, memory.activations, nullptr, nullptr));
  SHOAL_RETURN_IF_ERROR(all.Backward(call, memory.activations, nullptr, nullptr));
  return ResultOf(model, microbatch);
}

int64_t MicrobatchBytes(const plan::ModelSpec& spec, DType compute, int64_t tokens,
                        const plan::LossChunk& loss_chunk, plan::Recompute recompute) {
  Carver measure(nullptr);
  MicrobatchInput::CarveLargest(measure, tokens);
  TrainingMemory::Carve(measure, spec, compute, plan::MicrobatchRows(tokens), tokens, loss_chunk,
                        recompute);
  return measure.bytes();
}

absl::StatusOr<MicrobatchResult> EvaluateLoss(Transformer& model, const PackedBatch& batch,
                                              UnitSource& source) {
  SHOAL_ASSIGN_OR_RETURN(MicrobatchInput microbatch,
                         MicrobatchInput::Create(batch, model.spec().vocabulary));
  SHOAL_ASSIGN_OR_RETURN(const EvaluationMemory memory,
                         Prepare<EvaluationMemory>(model, microbatch));
  SHOAL_RETURN_IF_ERROR(ForwardForEvaluation(model, microbatch, source, memory));
  SHOAL_RETURN_IF_ERROR(HeadLoss(model, microbatch, source, memory.last, memory.head));
  return ResultOf(model, microbatch);
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
  SHOAL_ASSIGN_OR_RETURN(MicrobatchInput microbatch,
                         MicrobatchInput::Create(batch, model.spec().vocabulary));
  SHOAL_ASSIGN_OR_RETURN(const EvaluationMemory memory,
                         Prepare<EvaluationMemory>(model, microbatch));
  SHOAL_RETURN_IF_ERROR(ForwardForEvaluation(model, microbatch, source, memory));
  SHOAL_ASSIGN_OR_RETURN(const HeldHead head, HeldHead::Get(model, source));
  ForwardNorm(model, head, memory.last, memory.head);
  std::vector<float> logits;
  for (const int32_t position : positions) {
    const Matrix row = memory.head.chunk.logits.Rows(0, 1);
    model.ops().Matmul({.a = memory.head.normed.Rows(position, 1),
                        .b = head.matrix(),
                        .c = row,
                        .transpose_b = true});
    SHOAL_RETURN_IF_ERROR(model.ops().Check());
    logits.resize(logits.size() + static_cast<size_t>(row.columns));
    model.ops().stream().Copy(logits.data() + logits.size() - row.columns, row.data,
                              row.columns * 4);
    SHOAL_RETURN_IF_ERROR(model.ops().stream().Synchronize());
  }
  model.CapLogits(logits);
  return logits;
}

}  // namespace shoal::worker
