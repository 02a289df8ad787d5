// Gradients of a small model, in tests: against finite differences, and into memory without zeros.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "worker/model/testing/small_model.h"

namespace shoal::worker::testing_model {

inline std::unique_ptr<Transformer> MakeModel(const plan::ModelSpec& spec,
                                              DType compute = DType::kF32, int threads = 2) {
  return *Transformer::Create(spec, {.compute = compute, .threads = threads});
}

inline double LengthOf(std::span<const float> values) {
  double squares = 0;
  for (const double value : values) {
    squares += value * value;
  }
  return std::sqrt(squares);
}

inline std::span<const float> Part(std::span<const float> unit, const plan::TensorSpec& tensor) {
  return unit.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.count()));
}

// Moving one tensor along its own gradient must change the loss by the gradient's length.
inline void CheckEveryTensor(const plan::ModelSpec& spec, const PackedBatch& batch) {
  const auto model = MakeModel(spec);
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 3);
  MemoryGradientSink sink(model->units());
  ASSERT_TRUE(RunMicrobatch(*model, batch, 1.0, weights, sink).ok());
  for (const plan::UnitSpec& unit : model->units()) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      const std::span<const float> gradient = Part(sink.gradient(unit.index), tensor);
      const double length = LengthOf(gradient);
      // A bias on k shifts all scores of a query alike (up to rotation): its gradient is small, and
      // the check proves little.
      ASSERT_GT(length, 0) << tensor.name;
      const std::span<float> values =
          weights.weights(unit.index)
              .subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.count()));
      const std::vector<float> before(values.begin(), values.end());
      double losses[2];
      const double step = batch.preference.has_value() ? 0.003 : 0.01;  // it bends more
      for (const int side : {0, 1}) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] =
              before[i] + static_cast<float>((side == 0 ? step : -step) * gradient[i] / length);
        }
        losses[side] = EvaluateLoss(*model, batch, weights)->loss_sum;
      }
      std::copy(before.begin(), before.end(), values.begin());
      EXPECT_NEAR((losses[0] - losses[1]) / (2 * step), length, 0.01 * length + 0.01)
          << tensor.name;
    }
  }
}

// Of samples whose targets have weights.
inline void CheckEveryTensor(const plan::ModelSpec& spec) {
  PackedBatch batch = RandomBatch(spec, {17, 1, 30}, 4, /*masked=*/true);
  for (int64_t t = 0; t < batch.token_count(); ++t) {
    batch.weights.push_back(0.5f * static_cast<float>(t % 6 - 1));  // from -0.5 to 2
  }
  CheckEveryTensor(spec, batch);
}

// Returns empty gradients, full of NaN.
class EmptyGradientSink final : public GradientSink {
 public:
  explicit EmptyGradientSink(const std::vector<plan::UnitSpec>& units) {
    for (const plan::UnitSpec& unit : units) {
      gradients_.emplace_back(static_cast<size_t>(unit.count),
                              std::numeric_limits<float>::quiet_NaN());
    }
    empty_.assign(units.size(), true);
  }
  absl::StatusOr<std::span<float>> Accumulator(int) override {
    return absl::UnimplementedError("zeros were not asked for");
  }
  absl::StatusOr<UnitGradient> Gradient(int unit) override {
    const auto index = static_cast<size_t>(unit);
    const bool empty = empty_[index];
    empty_[index] = false;
    return UnitGradient{.sums = gradients_[index], .empty = empty};
  }
  absl::Status Done(int) override { return absl::OkStatus(); }
  std::span<const float> gradient(int unit) const { return gradients_[static_cast<size_t>(unit)]; }

 private:
  std::vector<std::vector<float>> gradients_;
  std::vector<bool> empty_;
};

}  // namespace shoal::worker::testing_model
