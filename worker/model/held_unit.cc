#include "worker/model/held_unit.h"

#include <utility>

#include "core/base/status.h"

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

absl::StatusOr<HeldBlock> HeldBlock::Get(const Transformer& model, UnitSource& source, int unit) {
  SHOAL_ASSIGN_OR_RETURN(HeldUnit block, HeldUnit::Get(model, source, unit));
  HeldBlock held(std::move(block));
  if (const int adapters = model.adapter_unit(unit); adapters >= 0) {
    SHOAL_ASSIGN_OR_RETURN(HeldUnit of_adapters, HeldUnit::Get(model, source, adapters));
    held.adapters_.emplace(std::move(of_adapters));
  }
  return held;
}

BlockWeights HeldBlock::weights(const Transformer& model, const DropoutMask& dropout) const {
  const int unit = block_.unit();
  BlockWeights weights = {.spec = model.spec(),
                          .kind = model.spec().block(unit - 1),
                          .layout = model.layout(unit),
                          .data = block_.data(),
                          .dtype = model.compute()};
  if (adapters_.has_value()) {
    weights.adapters = {.layout = &model.adapter_layout(unit),
                        .data = adapters_->data(),
                        .dtype = model.compute(),
                        .dropout = dropout};
  }
  return weights;
}

absl::StatusOr<UnitGradient> GradientOf(const Transformer& model, GradientSink& sink, int unit) {
  if (!sink.Wants(unit)) {
    return UnitGradient();
  }
  SHOAL_ASSIGN_OR_RETURN(const UnitGradient gradient, sink.Gradient(unit));
  const plan::UnitSpec& expected = model.units()[static_cast<size_t>(unit)];
  if (static_cast<int64_t>(gradient.sums.size()) != expected.count) {
    return FailedPrecondition("unit {}: the gradient's accumulator has {} elements, the unit {}",
                              expected.name, gradient.sums.size(), expected.count);
  }
  return gradient;
}

absl::Status ContributionDone(Transformer& model, GradientSink& sink, int unit) {
  SHOAL_RETURN_IF_ERROR(model.ops().Check());
  return sink.Done(unit);
}

}  // namespace shoal::worker
