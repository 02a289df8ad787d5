#include "worker/model/forward.h"

#include <algorithm>
#include <utility>

#include "common/bytes.h"
#include "common/status.h"
#include "formats/token_file.h"

namespace shoal::worker {

absl::StatusOr<HeldUnit> HeldUnit::Get(const Transformer& model, UnitSource& source, int unit) {
  SHOAL_ASSIGN_OR_RETURN(const WeightsView view, source.Get(unit));
  HeldUnit held(&source, unit, view);
  const plan::UnitSpec& expected = model.units()[static_cast<size_t>(unit)];
  if (view.dtype != model.compute() || view.count != expected.count) {
    return FailedPrecondition(
        "unit {}: the source gives {} elements of {}, the model computes with {} of {}",
        expected.name, view.count, Name(view.dtype), expected.count, Name(model.compute()));
  }
  return held;
}

HeldUnit::~HeldUnit() {
  if (source_ != nullptr) {
    source_->Release(unit_);
  }
}

HeldUnit::HeldUnit(HeldUnit&& other) noexcept
    : source_(std::exchange(other.source_, nullptr)), unit_(other.unit_), view_(other.view_) {}

ConstVector HeldUnit::vector(int64_t offset, int64_t count) const {
  return {static_cast<const std::byte*>(view_.data) + offset * SizeOf(view_.dtype), view_.dtype,
          count};
}

ConstMatrix HeldUnit::matrix(int64_t offset, int64_t rows, int64_t columns) const {
  return ConstMatrix::Dense(vector(offset, rows * columns).data, view_.dtype, rows, columns);
}

BlockWeights HeldUnit::block(const Transformer& model) const {
  return {.spec = model.spec(), .layout = model.layout(), .data = view_.data, .dtype = view_.dtype};
}

MicrobatchMemory MicrobatchMemory::Carve(Carver& carver, const plan::ModelSpec& spec, DType compute,
                                         int64_t rows, int64_t targets, bool training) {
  MicrobatchMemory m;
  m.rows = rows;
  m.tokens = carver.TakeArray<int32_t>(rows);
  m.positions = carver.TakeArray<int32_t>(rows);
  m.target_rows = carver.TakeArray<int32_t>(targets);
  m.target_labels = carver.TakeArray<int32_t>(targets);
  m.loss_sum = carver.TakeArray<double>(1);
  const auto layers = static_cast<size_t>(spec.layers);
  if (training) {
    for (size_t i = 0; i < layers; ++i) {
      m.blocks.push_back(BlockActivations::Carve(carver, spec, compute, rows));
    }
    m.gradients = BlockGradients::Carve(carver, spec, compute, rows);
    for (Matrix& d_hidden : m.d_hidden) {
      d_hidden = carver.TakeMatrix(compute, rows, spec.hidden);
    }
  } else {
    m.blocks.assign(layers, BlockActivations::Carve(carver, spec, compute, rows));
    const Matrix other_input = carver.TakeMatrix(compute, rows, spec.hidden);
    for (size_t i = 1; i < layers; i += 2) {
      m.blocks[i].input = other_input;
    }
  }
  m.last = carver.TakeMatrix(compute, rows, spec.hidden);
  m.normed = carver.TakeMatrix(compute, rows, spec.hidden);
  m.inverse_rms = carver.TakeArray<float>(rows);
  const int64_t chunk_rows = CrossEntropyChunkRows(spec.vocabulary, targets);
  m.chunk.x = carver.TakeMatrix(compute, chunk_rows, spec.hidden);
  m.chunk.d_x = carver.TakeMatrix(compute, chunk_rows, spec.hidden);
  m.chunk.logits = carver.TakeMatrix(DType::kF32, chunk_rows, spec.vocabulary);
  m.chunk.d_logits = compute == DType::kF32
                         ? m.chunk.logits
                         : carver.TakeMatrix(compute, chunk_rows, spec.vocabulary);
  return m;
}

int64_t MicrobatchBytes(const plan::ModelSpec& spec, DType compute, int64_t tokens, bool training) {
  Carver measure(nullptr);
  MicrobatchMemory::Carve(measure, spec, compute, RoundUp(tokens, kRowPadding), tokens, training);
  return measure.bytes();
}

absl::StatusOr<PreparedMicrobatch> Prepare(Transformer& model, const PackedBatch& batch,
                                           bool training) {
  const plan::ModelSpec& spec = model.spec();
  SHOAL_RETURN_IF_ERROR(Validate(batch, spec.vocabulary));
  PreparedMicrobatch prepared;
  prepared.token_count = batch.token_count();
  std::vector<int32_t> labels;
  for (int64_t t = 0; t < batch.token_count(); ++t) {
    const int32_t label = batch.labels[static_cast<size_t>(t)];
    if (label != formats::kIgnoredLabel) {
      prepared.host_target_rows.push_back(static_cast<int32_t>(t));
      labels.push_back(label);
    }
  }
  const int64_t rows = RoundUp(batch.token_count(), kRowPadding);
  std::vector<int32_t> positions = Positions(batch);
  int32_t longest = 0;
  for (const int32_t position : positions) {
    longest = std::max(longest, position + 1);
  }
  positions.resize(static_cast<size_t>(rows), 0);
  model.rotary().Reserve(longest);

  const auto targets = static_cast<int64_t>(labels.size());
  SHOAL_ASSIGN_OR_RETURN(prepared.memory, model.workspace().Fill([&](Carver& carver) {
    return MicrobatchMemory::Carve(carver, spec, model.compute(), rows, targets, training);
  }));
  const MicrobatchMemory& memory = prepared.memory;
  Stream& stream = model.ops().stream();
  stream.Copy(memory.tokens, batch.tokens.data(), batch.token_count() * 4);
  stream.Copy(memory.positions, positions.data(), rows * 4);
  stream.Copy(memory.target_rows, prepared.host_target_rows.data(), targets * 4);
  stream.Copy(memory.target_labels, labels.data(), targets * 4);
  stream.Zero(memory.loss_sum, sizeof(double));
  SHOAL_RETURN_IF_ERROR(stream.Synchronize());  // the vectors above end here
  prepared.sequences = {.cu_seqlens = batch.cu_seqlens,
                        .positions = memory.positions,
                        .cosines = model.rotary().cosines(),
                        .sines = model.rotary().sines()};
  prepared.targets = {.host_rows = prepared.host_target_rows,
                      .rows = memory.target_rows,
                      .labels = memory.target_labels};
  return prepared;
}

absl::Status ForwardBlocks(Transformer& model, const PreparedMicrobatch& microbatch,
                           UnitSource& source) {
  const plan::ModelSpec& spec = model.spec();
  const MicrobatchMemory& memory = microbatch.memory;
  {
    SHOAL_ASSIGN_OR_RETURN(const HeldUnit embedding, HeldUnit::Get(model, source, 0));
    model.ops().EmbeddingForward(memory.tokens, microbatch.token_count,
                                 embedding.matrix(0, spec.vocabulary, spec.hidden),
                                 memory.blocks[0].input);
  }
  for (size_t i = 0; i < memory.blocks.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const HeldUnit unit,
                           HeldUnit::Get(model, source, static_cast<int>(i) + 1));
    const Matrix output = i + 1 < memory.blocks.size() ? memory.blocks[i + 1].input : memory.last;
    BlockForward(model.ops(), unit.block(model), microbatch.sequences, memory.blocks[i], output);
  }
  return model.ops().Finish();
}

void ForwardNorm(Transformer& model, const MicrobatchMemory& memory, const HeldUnit& head) {
  model.ops().RmsNormForward(memory.last, head.vector(0, model.spec().hidden),
                             model.spec().norm_epsilon, memory.normed, memory.inverse_rms);
}

}  // namespace shoal::worker
