#include "bench/gpu_check/base/resident_units.h"

#include "bench/gpu_check/base/device_data.h"
#include "core/base/bf16.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::bench {
namespace {

absl::StatusOr<std::vector<worker::Buffer>> TakeUnits(worker::Transformer& model, DType dtype) {
  std::vector<worker::Buffer> buffers;
  for (const plan::UnitSpec& unit : model.units()) {
    SHOAL_ASSIGN_OR_RETURN(buffers.emplace_back(),
                           model.device().Allocate(unit.count * SizeOf(dtype)));
  }
  return buffers;
}

std::vector<BFloat16> Rounded(std::span<const float> values) {
  std::vector<BFloat16> rounded;
  rounded.reserve(values.size());
  for (const float value : values) {
    rounded.emplace_back(value);
  }
  return rounded;
}

absl::Status UploadAs(worker::Stream& stream, void* to, DType dtype,
                      std::span<const float> values) {
  if (dtype == DType::kF32) {
    return CopyNow(stream, to, values.data(), static_cast<int64_t>(values.size_bytes()));
  }
  const std::vector<BFloat16> rounded = Rounded(values);
  return CopyNow(stream, to, rounded.data(),
                 static_cast<int64_t>(rounded.size() * sizeof(BFloat16)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ResidentWeights>> ResidentWeights::Create(
    worker::Transformer& model) {
  std::unique_ptr<ResidentWeights> weights(new ResidentWeights(model));
  SHOAL_ASSIGN_OR_RETURN(weights->units_, TakeUnits(model, model.compute()));
  return weights;
}

absl::Status ResidentWeights::SetRandom(uint64_t seed) {
  worker::Stream& stream = model_.ops().stream();
  const DType dtype = model_.compute();
  for (const plan::UnitSpec& unit : model_.units()) {
    std::byte* const data = units_[static_cast<size_t>(unit.index)].data();
    SHOAL_RETURN_IF_ERROR(FillNormal(stream, data, dtype, unit.count, 0.02,
                                     seed + static_cast<uint64_t>(unit.index)));
    for (const plan::TensorSpec& tensor : unit.tensors) {
      if (tensor.name.ends_with("norm.weight")) {
        const std::vector<float> ones(static_cast<size_t>(tensor.count()), 1.0F);
        SHOAL_RETURN_IF_ERROR(UploadAs(stream, data + tensor.offset * SizeOf(dtype), dtype, ones));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ResidentWeights::Set(int unit, std::span<const float> values) {
  const worker::Buffer& buffer = units_[static_cast<size_t>(unit)];
  SHOAL_CHECK(static_cast<int64_t>(values.size()) * SizeOf(model_.compute()) == buffer.bytes());
  return UploadAs(model_.ops().stream(), buffer.data(), model_.compute(), values);
}

absl::StatusOr<worker::WeightsView> ResidentWeights::Get(int unit) {
  const auto index = static_cast<size_t>(unit);
  return worker::WeightsView{units_[index].data(), model_.compute(), model_.units()[index].count};
}

absl::StatusOr<std::unique_ptr<ResidentGradients>> ResidentGradients::Create(
    worker::Transformer& model) {
  std::unique_ptr<ResidentGradients> gradients(new ResidentGradients(model));
  SHOAL_ASSIGN_OR_RETURN(gradients->units_, TakeUnits(model, DType::kF32));
  gradients->Clear();
  return gradients;
}

void ResidentGradients::Clear() { empty_.assign(units_.size(), true); }

std::span<float> ResidentGradients::Sums(int unit) {
  const auto index = static_cast<size_t>(unit);
  const worker::Buffer& buffer = units_[index];
  if (empty_[index]) {
    model_.ops().stream().Zero(buffer.data(), buffer.bytes());
    empty_[index] = false;
  }
  return std::span(reinterpret_cast<float*>(buffer.data()),
                   static_cast<size_t>(buffer.bytes()) / sizeof(float));
}

absl::StatusOr<std::vector<float>> ResidentGradients::Read(int unit) {
  const std::span<float> sums = Sums(unit);
  std::vector<float> values(sums.size());
  SHOAL_RETURN_IF_ERROR(CopyNow(model_.ops().stream(), values.data(), sums.data(),
                                static_cast<int64_t>(sums.size_bytes())));
  return values;
}

absl::StatusOr<worker::UnitGradient> ResidentGradients::Gradient(int unit) {
  const auto index = static_cast<size_t>(unit);
  if (!empty_[index]) {
    return worker::UnitGradient{.sums = Sums(unit)};
  }
  empty_[index] = false;
  return worker::UnitGradient{.sums = Sums(unit), .empty = true};
}

}  // namespace shoal::bench
