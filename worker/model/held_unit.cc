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

BlockWeights HeldUnit::block(const Transformer& model) const {
  return {.spec = model.spec(),
          .kind = model.spec().block(unit_ - 1),
          .layout = model.layout(unit_),
          .data = view_.data,
          .dtype = view_.dtype};
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
