#include "worker/model/golden_steps.h"

#include <algorithm>
#include <cmath>

#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::worker {

using Json = nlohmann::json;

absl::StatusOr<Json> ReadGoldenSteps(const std::string& data) {
  const std::string path = data + "/golden/stories260k_steps.json";
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  Json golden = Json::parse(text, nullptr, false);
  if (golden.is_discarded()) {
    return InvalidArgument("{} is no JSON", path);
  }
  return golden;
}

std::vector<PackedBatch> GoldenMicrobatches(const Json& golden) {
  std::vector<PackedBatch> batches;
  for (size_t row = 0; row < golden["rows"].size(); ++row) {
    const std::vector<int32_t> tokens = golden["rows"][row];
    PackedBatch& batch = batches.emplace_back();
    size_t begin = 0;
    for (const size_t length : golden["sequence_lengths"][row].get<std::vector<size_t>>()) {
      batch.AppendNextToken(std::span(tokens).subspan(begin, length));
      begin += length;
    }
  }
  return batches;
}

std::map<std::string, TensorNorms> NormsByTensor(
    const std::vector<plan::UnitSpec>& units,
    const std::function<std::span<const float>(int unit)>& gradient) {
  std::map<std::string, TensorNorms> norms;
  for (const plan::UnitSpec& unit : units) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      double squares = 0;
      TensorNorms& result = norms[tensor.name];
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.count(); ++i) {
        const double value = gradient(unit.index)[static_cast<size_t>(i)];
        squares += value * value;
        result.sum += value;
      }
      result.l2 = std::sqrt(squares);
    }
  }
  return norms;
}

double NormOf(const std::map<std::string, TensorNorms>& norms) {
  double squares = 0;
  for (const auto& [name, tensor] : norms) {
    squares += tensor.l2 * tensor.l2;
  }
  return std::sqrt(squares);
}

ReferenceAdamW::ReferenceAdamW(const Json& options, const std::vector<plan::UnitSpec>& units)
    : options_(options), units_(units) {
  for (const plan::UnitSpec& unit : units) {
    moments_.emplace_back(static_cast<size_t>(unit.count));
  }
}

void ReferenceAdamW::Step(const std::function<std::span<float>(int unit)>& weights,
                          const std::function<std::span<const float>(int unit)>& gradient,
                          double norm) {
  ++step_;
  const double clip = std::min(1.0, options_["clip_norm"].get<double>() / (norm + 1e-6));
  const double beta1 = options_["beta1"], beta2 = options_["beta2"], rate = options_["lr"];
  const double epsilon = options_["eps"];
  for (const plan::UnitSpec& unit : units_) {
    const std::span<float> values = weights(unit.index);
    const std::span<const float> gradients = gradient(unit.index);
    for (const plan::TensorSpec& tensor : unit.tensors) {
      const double decay = tensor.decays() ? options_["weight_decay"].get<double>() : 0.0;
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.count(); ++i) {
        const auto at = static_cast<size_t>(i);
        const double clipped = gradients[at] * clip;
        auto& [m, v] = moments_[static_cast<size_t>(unit.index)][at];
        m = beta1 * m + (1 - beta1) * clipped;
        v = beta2 * v + (1 - beta2) * clipped * clipped;
        const double m_hat = m / (1 - std::pow(beta1, step_));
        const double v_hat = v / (1 - std::pow(beta2, step_));
        const double value = values[at] * (1 - rate * decay);
        values[at] = static_cast<float>(value - rate * m_hat / (std::sqrt(v_hat) + epsilon));
      }
    }
  }
}

}  // namespace shoal::worker
