// Small random models of each family against Hugging Face's transformers in float64:
// tests/references/make_families.py made tests/references/families/NAME.json, and makes the same
// weights.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/testing/reference_value.h"
#include "core/base/testing/status.h"
#include "core/model/huggingface/hf_model.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/golden_steps.h"
#include "worker/model/runner.h"
#include "worker/model/testing/reference_values.h"

namespace shoal::worker {
namespace {

using Json = nlohmann::json;

class Families : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto text = ReadFile(fmt::format("{}/families/{}.json", SHOAL_REFERENCES, GetParam()));
    ASSERT_OK(text.status());
    golden_ = Json::parse(*text);
    const auto spec = SpecOf("config_v5");
    ASSERT_OK(spec.status());
    spec_ = *spec;
  }

  absl::StatusOr<plan::ModelSpec> SpecOf(const char* config) const {
    return formats::ParseModelSpec(golden_[config].dump(), config);
  }
  MemoryUnitSource Weights(DType compute) const {
    return *MemoryUnitSource::Load(plan::BuildUnits(spec_), compute,
                                   [&](int unit, int64_t offset, std::span<float> out) {
                                     return testing_model::ReadReference(spec_, unit, offset, out);
                                   });
  }
  PackedBatch Batch() const {
    PackedBatch batch;
    for (const Json& tokens : golden_["sequences"]) {
      batch.AppendNextToken(tokens.get<std::vector<int32_t>>());
    }
    return batch;
  }
  std::unique_ptr<Transformer> MakeModel(DType compute) const {
    auto model = *Transformer::Create(spec_, {.compute = compute, .threads = 2});
    model->rotary().ChooseFor(static_cast<int64_t>(golden_["sequences"][0].size()));  // the longest
    return model;
  }
  // Loss per target of one pass over the batch, and its gradient in the sink.
  double Pass(Transformer& model, MemoryUnitSource& source, MemoryGradientSink& sink,
              plan::Recompute recompute = plan::Recompute::kNone) const {
    sink.Clear();
    const PackedBatch batch = Batch();
    double targets = 0;
    for (const Json& tokens : golden_["sequences"]) {
      targets += static_cast<double>(tokens.size() - 1);
    }
    const auto result = RunMicrobatch(model, batch, 1 / targets, source, sink, recompute);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->targets, targets);
    return result->loss_sum / targets;
  }

  // Of the gradient of a tensor of the files.
  struct Sums {
    double squares = 0;
    double products[2] = {};
  };
  static std::map<std::string, Sums> GradientSums(const Transformer& model,
                                                  const MemoryGradientSink& sink) {
    std::map<std::string, Sums> all;
    for (const plan::UnitSpec& unit : model.units()) {
      for (const plan::TensorSpec& tensor : unit.tensors) {
        Sums& sums = all[tensor.stored.name];
        for (int64_t i = 0; i < tensor.count(); ++i) {
          const double value = sink.gradient(unit.index)[static_cast<size_t>(tensor.offset + i)];
          sums.squares += value * value;
          for (int k = 0; k < 2; ++k) {
            sums.products[k] += value * ReferenceValue(fmt::format("{} {}", tensor.stored.name, k),
                                                       tensor.stored_offset() + i);
          }
        }
      }
    }
    return all;
  }

  Json golden_;
  plan::ModelSpec spec_;
};

TEST_P(Families, ConfigsOfTransformers4And5AreTheSame) {
  const auto older = SpecOf("config_v4");
  ASSERT_OK(older.status());
  EXPECT_EQ(*older, spec_);
  const std::string own = formats::ModelSpecToJson(spec_, DType::kF32, {});
  EXPECT_EQ(*formats::ParseModelSpec(own, "own"), spec_) << own;
}

TEST_P(Families, HasTheTensorsOfTransformers) {
  std::map<std::string, std::vector<int64_t>> shapes;
  std::map<std::string, std::vector<int64_t>> expected;
  for (const plan::UnitSpec& unit : plan::BuildUnits(spec_)) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      shapes[tensor.stored.name] = tensor.stored_shape();
    }
  }
  for (const auto& [name, gradient] : golden_["gradients"].items()) {
    expected[name] = gradient["shape"].get<std::vector<int64_t>>();
  }
  EXPECT_EQ(shapes, expected);
}

TEST_P(Families, LogitsAndGradientsAreThoseOfTransformers) {
  const auto model = MakeModel(DType::kF32);
  MemoryUnitSource source = Weights(DType::kF32);
  const std::vector<int32_t> positions = golden_["positions"];
  const auto logits = ComputeLogits(*model, Batch(), positions, source);
  ASSERT_OK(logits.status());
  for (size_t i = 0; i < logits->size(); ++i) {
    const auto vocabulary = static_cast<size_t>(spec_.vocabulary);
    EXPECT_NEAR((*logits)[i], golden_["logits"][i / vocabulary][i % vocabulary].get<double>(), 1e-4)
        << "position " << positions[i / vocabulary] << ", token " << i % vocabulary;
  }
  for (const auto recompute :
       {plan::Recompute::kNone, plan::Recompute::kLight, plan::Recompute::kFull}) {
    MemoryGradientSink sink(model->units());
    EXPECT_NEAR(Pass(*model, source, sink, recompute), golden_["losses"][0].get<double>(), 1e-5);
    for (const auto& [name, sums] : GradientSums(*model, sink)) {
      const Json& expected = golden_["gradients"][name];
      const double norm = expected["norm"];
      EXPECT_NEAR(std::sqrt(sums.squares), norm, 1e-4 * norm) << name;
      for (size_t k = 0; k < 2; ++k) {
        EXPECT_NEAR(sums.products[k], expected["products"][k].get<double>(), 1e-4 * norm) << name;
      }
    }
  }
}

TEST_P(Families, TwentyStepsOfAdamWHaveTheLossesOfTorch) {
  const auto model = MakeModel(DType::kF32);
  MemoryUnitSource source = Weights(DType::kF32);
  MemoryGradientSink sink(model->units());
  ReferenceAdamW optimizer(golden_["adamw"], model->units());
  for (size_t step = 0; step < golden_["losses"].size(); ++step) {
    // How a CPU rounds moves AdamW's first steps, and what comes after by more than themselves.
    EXPECT_NEAR(Pass(*model, source, sink), golden_["losses"][step].get<double>(),
                step < 3 ? 1e-4 : 5e-4)
        << "step " << step;
    const auto gradient = [&](int unit) { return sink.gradient(unit); };
    const double norm = NormOf(NormsByTensor(model->units(), gradient));
    if (step == 0) {
      const double expected = golden_["gradient_norm"];
      EXPECT_NEAR(norm, expected, 1e-4 * expected);
    }
    optimizer.Step([&](int unit) { return source.weights(unit); }, gradient, norm);
  }
}

TEST_P(Families, Bf16IsClose) {
  const auto model = MakeModel(DType::kBF16);
  MemoryUnitSource source = Weights(DType::kBF16);
  MemoryGradientSink sink(model->units());
  const double expected = golden_["losses"][0];
  EXPECT_NEAR(Pass(*model, source, sink), expected, 2e-2 * expected);
}

INSTANTIATE_TEST_SUITE_P(Models, Families,
                         testing::Values("gemma2", "gemma2_uncapped", "gemma3", "gemma3_capped",
                                         "llama", "llama_linear", "llama_llama3", "mistral",
                                         "mistral_window", "olmo2", "olmo3", "phi3", "phi3_long",
                                         "phi3_partial", "phi4_mini", "qwen2", "qwen3",
                                         "qwen3_yarn", "smollm3"));

}  // namespace
}  // namespace shoal::worker
