#include "worker/model/resident_unit_access.h"

#include <utility>

#include "core/base/status.h"
#include "worker/model/held_unit.h"

namespace shoal::worker {

absl::StatusOr<ResidentUnitSource> ResidentUnitSource::Load(Transformer& model,
                                                            MemoryUnitSource& weights) {
  ResidentUnitSource source;
  source.dtype_ = model.compute();
  Stream& stream = model.ops().stream();
  for (const plan::UnitSpec& unit : model.units()) {
    const int64_t bytes = unit.count * SizeOf(source.dtype_);
    SHOAL_ASSIGN_OR_RETURN(Buffer buffer, model.device().Allocate(bytes));
    SHOAL_ASSIGN_OR_RETURN(const HeldUnit held, HeldUnit::Get(model, weights, unit.index));
    stream.Copy(buffer.data(), held.vector(0, unit.count).data, bytes);
    SHOAL_RETURN_IF_ERROR(stream.Synchronize());
    source.units_.push_back(std::move(buffer));
  }
  return source;
}

absl::StatusOr<WeightsView> ResidentUnitSource::Get(int unit) {
  const Buffer& buffer = units_[static_cast<size_t>(unit)];
  return WeightsView{buffer.data(), dtype_, buffer.bytes() / SizeOf(dtype_)};
}

absl::StatusOr<ResidentGradientSink> ResidentGradientSink::Create(Transformer& model) {
  ResidentGradientSink sink(model);
  for (const plan::UnitSpec& unit : model.units()) {
    SHOAL_ASSIGN_OR_RETURN(
        Buffer buffer, model.device().Allocate(unit.count * static_cast<int64_t>(sizeof(float))));
    sink.units_.push_back(std::move(buffer));
  }
  sink.Clear();
  return sink;
}

absl::StatusOr<std::span<float>> ResidentGradientSink::Accumulator(int unit) {
  const Buffer& buffer = units_[static_cast<size_t>(unit)];
  return std::span<float>(reinterpret_cast<float*>(buffer.data()),
                          static_cast<size_t>(buffer.bytes()) / sizeof(float));
}

absl::StatusOr<std::vector<float>> ResidentGradientSink::Read(int unit) const {
  const Buffer& buffer = units_[static_cast<size_t>(unit)];
  std::vector<float> gradient(static_cast<size_t>(buffer.bytes()) / sizeof(float));
  Stream& stream = model_->ops().stream();
  stream.Copy(gradient.data(), buffer.data(), buffer.bytes());
  SHOAL_RETURN_IF_ERROR(stream.Synchronize());
  return gradient;
}

void ResidentGradientSink::Clear() {
  for (const Buffer& buffer : units_) {
    model_->ops().stream().Zero(buffer.data(), buffer.bytes());
  }
}

}  // namespace shoal::worker
