#include "worker/model/head.h"

#include <span>
#include <utility>

#include "core/base/status.h"
#include "core/plan/memory/norm_partials.h"

namespace shoal::worker {

absl::StatusOr<HeldHead> HeldHead::Get(const Transformer& model, UnitSource& source) {
  SHOAL_ASSIGN_OR_RETURN(HeldUnit unit, HeldUnit::Get(model, source, model.head_unit()));
  HeldHead head(model, std::move(unit));
  if (model.spec().tied_embeddings) {
    SHOAL_ASSIGN_OR_RETURN(HeldUnit tied, HeldUnit::Get(model, source, model.head_matrix_unit()));
    head.tied_.emplace(std::move(tied));
  }
  return head;
}

NormWeight HeldHead::norm() const {
  const plan::ModelSpec& spec = model_->spec();
  return {head_.vector(0, spec.hidden), static_cast<float>(spec.norm_offset)};
}

ConstMatrix HeldHead::matrix() const {
  const plan::ModelSpec& spec = model_->spec();
  return (tied_ ? *tied_ : head_)
      .matrix(model_->head_matrix_offset(), spec.vocabulary, spec.hidden);
}

HeadScratch HeadScratch::Carve(Carver& carver, const plan::ModelSpec& spec, DType compute,
                               int64_t rows, int64_t targets, const plan::LossChunk& loss_chunk) {
  HeadScratch s;
  s.normed = carver.TakeMatrix(compute, rows, spec.hidden);
  s.inverse_rms = carver.TakeArray<float>(rows);
  s.d_norm = carver.TakeMatrix(DType::kF32, plan::NormPartials(rows), spec.hidden);
  const int64_t chunk_rows = loss_chunk.Rows(spec.vocabulary, targets);
  s.chunk.x = carver.TakeMatrix(compute, chunk_rows, spec.hidden);
  s.chunk.d_x = carver.TakeMatrix(compute, chunk_rows, spec.hidden);
  const int64_t stride = plan::LossChunk::Stride(spec.vocabulary);
  const auto take_logits = [&](DType dtype) {
    return carver.TakeMatrix(dtype, chunk_rows, stride).Columns(0, spec.vocabulary);
  };
  s.chunk.logits = take_logits(DType::kF32);
  s.chunk.d_logits = compute == DType::kF32 ? s.chunk.logits : take_logits(compute);
  return s;
}

void ForwardNorm(Transformer& model, const HeldHead& head, ConstMatrix last,
                 const HeadScratch& scratch) {
  model.ops().RmsNormForward(last, head.norm(), model.spec().norm_epsilon, {}, scratch.normed,
                             scratch.inverse_rms);
}

namespace {

// The loss alone, of scratch.normed; of pairs, what each row of the backward counts for, too.
absl::Status TakeLoss(Transformer& model, const MicrobatchInput& microbatch, const HeldHead& head,
                      const HeadScratch& scratch) {
  LinearCrossEntropy(model.ops(), scratch.normed, head.matrix(), microbatch.targets(), 0.0f,
                     model.logits_softcap(), scratch.chunk, Matrix(), {},
                     {microbatch.loss_sum(), microbatch.log_probabilities()});
  if (microbatch.pairs() != nullptr) {
    SHOAL_RETURN_IF_ERROR(microbatch.ComparePairs(model.ops().stream()));
  }
  return model.ops().Check();
}

// Zeroes an empty gradient's elements before and after what is written.
void ZeroBeside(Transformer& model, const UnitGradient& gradient, int64_t begin, int64_t count) {
  if (gradient.empty) {
    const std::span<float> before = gradient.sums.first(static_cast<size_t>(begin));
    const std::span<float> after = gradient.sums.subspan(static_cast<size_t>(begin + count));
    for (const std::span<float> part : {before, after}) {
      model.ops().stream().Zero(part.data(), static_cast<int64_t>(part.size_bytes()));
    }
  }
}

}  // namespace

absl::Status HeadLoss(Transformer& model, const MicrobatchInput& microbatch, UnitSource& source,
                      ConstMatrix last, const HeadScratch& scratch) {
  SHOAL_ASSIGN_OR_RETURN(const HeldHead head, HeldHead::Get(model, source));
  ForwardNorm(model, head, last, scratch);
  return TakeLoss(model, microbatch, head, scratch);
}

absl::Status HeadBackward(Transformer& model, const MicrobatchInput& microbatch, double loss_scale,
                          UnitSource& source, GradientSink& sink, ConstMatrix last,
                          const HeadScratch& scratch, Matrix d_normed, Matrix d_last) {
  const int unit = model.head_unit();
  const int matrix_unit = model.head_matrix_unit();
  SHOAL_ASSIGN_OR_RETURN(const HeldHead head, HeldHead::Get(model, source));
  SHOAL_ASSIGN_OR_RETURN(const UnitGradient gradient, GradientOf(model, sink, unit));
  UnitGradient of_matrix = gradient;
  if (matrix_unit != unit) {
    ZeroBeside(model, gradient, 0, 0);
    SHOAL_ASSIGN_OR_RETURN(of_matrix, GradientOf(model, sink, matrix_unit));
  }
  const plan::ModelSpec& spec = model.spec();
  ZeroBeside(model, of_matrix, model.head_matrix_offset(), spec.vocabulary * spec.hidden);
  ForwardNorm(model, head, last, scratch);
  if (microbatch.pairs() != nullptr) {
    SHOAL_RETURN_IF_ERROR(TakeLoss(model, microbatch, head, scratch));
  }
  const bool wants_matrix = !of_matrix.sums.empty();
  LinearCrossEntropy(
      model.ops(), scratch.normed, head.matrix(), microbatch.targets(),
      static_cast<float>(loss_scale), model.logits_softcap(), scratch.chunk, d_normed,
      {.sums = wants_matrix ? of_matrix.sums.data() + model.head_matrix_offset() : nullptr,
       .empty = of_matrix.empty},
      {microbatch.loss_sum()});
  model.ops().RmsNormBackward(d_normed, last, head.norm(), scratch.inverse_rms, ConstMatrix(),
                              d_last, scratch.d_norm);
  if (!gradient.sums.empty()) {
    model.ops().AddColumnSums(scratch.d_norm, gradient.sums.data());
  }
  SHOAL_RETURN_IF_ERROR(ContributionDone(model, sink, unit));
  return matrix_unit != unit && wants_matrix ? sink.DoneTied() : absl::OkStatus();
}

absl::StatusOr<double> ReadLoss(Transformer& model, const MicrobatchInput& microbatch) {
  double loss = 0;
  model.ops().stream().Copy(&loss, microbatch.loss_sum(), sizeof(loss));
  SHOAL_RETURN_IF_ERROR(model.ops().stream().Synchronize());
  SHOAL_RETURN_IF_ERROR(model.ops().Check());
  return loss;
}

}  // namespace shoal::worker
