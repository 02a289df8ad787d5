#include "worker/model/access/memory_unit_access.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::worker {

absl::StatusOr<MemoryUnitSource> MemoryUnitSource::Load(const std::vector<plan::UnitSpec>& units,
                                                        DType dtype, const UnitFiller& fill) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return InvalidArgument("weights in memory: {} is not a compute type", Name(dtype));
  }
  MemoryUnitSource source;
  source.dtype_ = dtype;
  for (const plan::UnitSpec& spec : units) {
    std::vector<float> values(static_cast<size_t>(spec.count));
    SHOAL_RETURN_IF_ERROR(fill(spec.index, 0, values));
    Unit& unit = source.units_.emplace_back();
    if (dtype == DType::kF32) {
      unit.f32 = std::move(values);
    } else {
      unit.bf16.resize(values.size());
      Convert(std::span<const float>(values), unit.bf16.data());
    }
  }
  return source;
}

absl::StatusOr<WeightsView> MemoryUnitSource::Get(int unit) {
  SHOAL_CHECK(unit >= 0 && static_cast<size_t>(unit) < units_.size());
  ++held_;
  const Unit& held = units_[static_cast<size_t>(unit)];
  if (dtype_ == DType::kF32) {
    return WeightsView{held.f32.data(), dtype_, static_cast<int64_t>(held.f32.size())};
  }
  return WeightsView{held.bf16.data(), dtype_, static_cast<int64_t>(held.bf16.size())};
}

void MemoryUnitSource::Release(int) {
  SHOAL_CHECK(held_ > 0);
  --held_;
}

std::span<float> MemoryUnitSource::weights(int unit) {
  SHOAL_CHECK(dtype_ == DType::kF32);
  return units_[static_cast<size_t>(unit)].f32;
}

MemoryGradientSink::MemoryGradientSink(const std::vector<plan::UnitSpec>& units) {
  for (const plan::UnitSpec& spec : units) {
    gradients_.emplace_back(static_cast<size_t>(spec.count), 0.0f);
  }
}

absl::StatusOr<std::span<float>> MemoryGradientSink::Accumulator(int unit) {
  return std::span<float>(gradients_[static_cast<size_t>(unit)]);
}

absl::Status MemoryGradientSink::Done(int unit) {
  done_.push_back(unit);
  return absl::OkStatus();
}

void MemoryGradientSink::Clear() {
  for (std::vector<float>& gradient : gradients_) {
    std::fill(gradient.begin(), gradient.end(), 0.0f);
  }
  done_.clear();
}

}  // namespace shoal::worker
