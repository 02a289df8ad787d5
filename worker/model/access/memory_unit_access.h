// Weights and gradients in this process's memory: for tests, `shoal generate` and `shoal eval`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/base/bf16.h"
#include "core/model/model_spec.h"
#include "worker/model/access/unit_access.h"

namespace shoal::worker {

// Fills elements [offset, offset + out.size()) of a unit's flat vector (formats::HfModel::ReadUnit
// has this shape).
using UnitFiller = std::function<absl::Status(int unit, int64_t offset, std::span<float> out)>;

class MemoryUnitSource : public UnitSource {
 public:
  // Reads every unit and keeps it in `dtype` (kF32 or kBF16).
  static absl::StatusOr<MemoryUnitSource> Load(const std::vector<plan::UnitSpec>& units,
                                               DType dtype, const UnitFiller& fill);

  absl::StatusOr<WeightsView> Get(int unit) override;
  void Release(int unit) override;

  // The weights themselves, if kept in fp32 (tests change them in place).
  std::span<float> weights(int unit);
  int64_t held() const { return held_; }  // Gets without their Release

 private:
  struct Unit {
    std::vector<float> f32;
    std::vector<BFloat16> bf16;
  };
  DType dtype_ = DType::kF32;
  std::vector<Unit> units_;
  int64_t held_ = 0;
};

class MemoryGradientSink : public GradientSink {
 public:
  explicit MemoryGradientSink(const std::vector<plan::UnitSpec>& units);

  absl::StatusOr<std::span<float>> Accumulator(int unit) override;
  absl::Status Done(int unit) override;

  std::span<const float> gradient(int unit) const { return gradients_[static_cast<size_t>(unit)]; }
  const std::vector<int>& done() const { return done_; }  // units in the order of their Done calls
  void Clear();

 private:
  std::vector<std::vector<float>> gradients_;
  std::vector<int> done_;
};

}  // namespace shoal::worker
