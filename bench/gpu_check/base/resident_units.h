// All weights and gradients of a model in device memory: nothing is fetched or pushed.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/model_spec.h"
#include "worker/model/access/unit_access.h"
#include "worker/model/transformer.h"

namespace shoal::bench {

class ResidentWeights final : public worker::UnitSource {
 public:
  // In the model's compute type, undefined until set. The model must outlive this.
  static absl::StatusOr<std::unique_ptr<ResidentWeights>> Create(worker::Transformer& model);
  // Sets norms to one, everything else to normal values of deviation 0.02.
  absl::Status SetRandom(uint64_t seed);
  // Sets a unit from its flat vector, converted to the compute type.
  absl::Status Set(int unit, std::span<const float> values);

  void* data(int unit) { return units_[static_cast<size_t>(unit)].data(); }

  absl::StatusOr<worker::WeightsView> Get(int unit) override;
  void Release(int) override {}

 private:
  explicit ResidentWeights(worker::Transformer& model) : model_(model) {}
  worker::Transformer& model_;
  std::vector<worker::Buffer> units_;
};

class ResidentGradients final : public worker::GradientSink {
 public:
  // Starts empty. The model must outlive this.
  static absl::StatusOr<std::unique_ptr<ResidentGradients>> Create(worker::Transformer& model);
  void Clear();
  // The unit's sums; zeros if nothing was added.
  std::span<float> Sums(int unit);
  // Copies the sums once the compute stream's work is done.
  absl::StatusOr<std::vector<float>> Read(int unit);

  absl::StatusOr<std::span<float>> Accumulator(int unit) override { return Sums(unit); }
  absl::StatusOr<worker::UnitGradient> Gradient(int unit) override;
  absl::Status Done(int) override { return absl::OkStatus(); }

 private:
  explicit ResidentGradients(worker::Transformer& model) : model_(model) {}
  worker::Transformer& model_;
  std::vector<worker::Buffer> units_;
  std::vector<bool> empty_;  // by unit
};

}  // namespace shoal::bench
