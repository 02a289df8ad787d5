// The golden training steps (golden/stories260k_steps.json): a real model's microbatches, and the
// results of three AdamW steps in a float64 reference. For tests and for checks of other devices.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/model_spec.h"
#include "nlohmann/json.hpp"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

// `data` is the folder of test data.
absl::StatusOr<nlohmann::json> ReadGoldenSteps(const std::string& data);
std::vector<PackedBatch> GoldenMicrobatches(const nlohmann::json& golden);

// Of a tensor's gradient.
struct TensorNorms {
  double l2 = 0;
  double sum = 0;
};
// By tensor; `gradient` returns a unit's.
std::map<std::string, TensorNorms> NormsByTensor(
    const std::vector<plan::UnitSpec>& units,
    const std::function<std::span<const float>(int unit)>& gradient);
// Norm of all of them together.
double NormOf(const std::map<std::string, TensorNorms>& norms);

// AdamW as the golden file specifies it: decoupled decay on tensors of rank 2, clipping by the
// global norm; moments in double.
class ReferenceAdamW {
 public:
  ReferenceAdamW(const nlohmann::json& options, const std::vector<plan::UnitSpec>& units);
  // Changes the weights; `norm` is of all gradients.
  void Step(const std::function<std::span<float>(int unit)>& weights,
            const std::function<std::span<const float>(int unit)>& gradient, double norm);

 private:
  const nlohmann::json options_;
  const std::vector<plan::UnitSpec> units_;
  std::vector<std::vector<std::pair<double, double>>> moments_;
  int step_ = 0;
};

}  // namespace shoal::worker
