// Weights and gradients that all stay in a device's memory: for measurements, tests, and models
// that fit beside their activations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/transformer.h"

namespace shoal::worker {

class ResidentUnitSource final : public UnitSource {
 public:
  // Copies what `weights` returns, which must be in the model's compute type, to the model's
  // device.
  static absl::StatusOr<ResidentUnitSource> Load(Transformer& model, MemoryUnitSource& weights);

  absl::StatusOr<WeightsView> Get(int unit) override;
  void Release(int) override {}

 private:
  DType dtype_ = DType::kF32;
  std::vector<Buffer> units_;
};

// Must not outlive the model.
class ResidentGradientSink final : public GradientSink {
 public:
  // Starts with all gradients zero.
  static absl::StatusOr<ResidentGradientSink> Create(Transformer& model);

  absl::StatusOr<std::span<float>> Accumulator(int unit) override;
  absl::Status Done(int) override { return absl::OkStatus(); }

  // Waits for what is on the compute stream.
  absl::StatusOr<std::vector<float>> Read(int unit) const;
  void Clear();

 private:
  explicit ResidentGradientSink(Transformer& model) : model_(&model) {}

  Transformer* model_;
  std::vector<Buffer> units_;
};

}  // namespace shoal::worker
