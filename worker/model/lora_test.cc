// Adapters on small random models against PEFT in float64: tests/references/make_lora.py made
// tests/references/lora/NAME.json, and makes the same weights.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/reference_value.h"
#include "core/base/testing/status.h"
#include "core/model/adapters.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/peft_adapter.h"
#include "core/model/huggingface/safetensors.h"
#include "core/model/merged_weights.h"
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

constexpr double kDeviation = 0.3;  // of make_lora.py

double Largest(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) {
    largest = std::max<double>(largest, std::abs(value));
  }
  return largest;
}

class Lora : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden_ =
        Json::parse(ReadFile(fmt::format("{}/lora/{}.json", SHOAL_REFERENCES, GetParam())).value());
    model_ = Json::parse(
        ReadFile(fmt::format("{}/families/{}.json", SHOAL_REFERENCES, GetParam())).value());
    base_ = formats::ParseModelSpec(model_["config_v5"].dump(), "config_v5").value();
    WriteAdapter();
    auto adapter = formats::PeftAdapter::Open(folder_.path(), base_);
    ASSERT_OK(adapter.status());
    adapter_ = *std::move(adapter);
    spec_ = adapter_->spec();
  }

  // As PEFT writes them.
  void WriteAdapter() {
    ASSERT_OK(WriteFileAtomically(folder_.path() + "/adapter_config.json",
                                  golden_["adapter_config"].dump()));
    std::vector<formats::SafetensorsTensor> tensors;
    for (const auto& [name, gradient] : golden_["gradients"].items()) {
      tensors.push_back({name, DType::kF32, gradient["shape"].get<std::vector<int64_t>>()});
    }
    auto writer = formats::SafetensorsWriter::Create(folder_.path() + "/adapter_model.safetensors",
                                                     tensors, {});
    ASSERT_OK(writer.status());
    for (const formats::SafetensorsTensor& tensor : tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] =
            static_cast<float>(kDeviation * ReferenceValue(tensor.name, static_cast<int64_t>(i)));
      }
      ASSERT_OK((*writer)->Append(std::as_bytes(std::span(values))));
    }
    ASSERT_OK((*writer)->Finish());
  }

  plan::UnitReader Reader() const {
    return [this, units = plan::BuildUnits(spec_)](int unit, int64_t offset, std::span<float> out) {
      return units[static_cast<size_t>(unit)].kind == plan::UnitKind::kAdapter
                 ? adapter_->ReadUnit(unit, offset, out)
                 : testing_model::ReadReference(base_, unit, offset, out);
    };
  }
  MemoryUnitSource Weights(DType compute) const {
    return *MemoryUnitSource::Load(plan::BuildUnits(spec_), compute, Reader());
  }
  PackedBatch Batch() const {
    PackedBatch batch;
    for (const Json& tokens : model_["sequences"]) {
      batch.AppendNextToken(tokens.get<std::vector<int32_t>>());
    }
    return batch;
  }
  std::unique_ptr<Transformer> MakeModel(const plan::ModelSpec& spec) const {
    auto model = *Transformer::Create(spec, {.compute = DType::kF32, .threads = 2});
    model->rotary().ChooseFor(static_cast<int64_t>(model_["sequences"][0].size()));  // the longest
    return model;
  }
  // Loss per target of one pass over the batch, and its gradient in the sink.
  double Pass(Transformer& model, MemoryUnitSource& source, MemoryGradientSink& sink) const {
    sink.Clear();
    double targets = 0;
    for (const Json& tokens : model_["sequences"]) {
      targets += static_cast<double>(tokens.size() - 1);
    }
    const auto result = RunMicrobatch(model, Batch(), 1 / targets, source, sink);
    EXPECT_TRUE(result.ok()) << result.status();
    return result->loss_sum / targets;
  }
  std::vector<float> Logits(const plan::ModelSpec& spec, MemoryUnitSource source) const {
    const auto model = MakeModel(spec);
    const std::vector<int32_t> positions = model_["positions"];
    return ComputeLogits(*model, Batch(), positions, source).value();
  }

  const TemporaryFolder folder_;
  Json golden_;
  Json model_;
  plan::ModelSpec base_;
  plan::ModelSpec spec_;
  std::unique_ptr<formats::PeftAdapter> adapter_;
};

TEST_P(Lora, LogitsAndGradientsAreThoseOfPeft) {
  const std::vector<float> logits = Logits(spec_, Weights(DType::kF32));
  const double tolerance = 1e-5 * Largest(logits);
  const auto vocabulary = static_cast<size_t>(spec_.vocabulary);
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(logits[i], golden_["logits"][i / vocabulary][i % vocabulary].get<double>(),
                tolerance);
  }
  const auto model = MakeModel(spec_);
  MemoryUnitSource source = Weights(DType::kF32);
  MemoryGradientSink sink(model->units());
  Pass(*model, source, sink);
  size_t seen = 0;
  for (const plan::UnitSpec& unit : model->units()) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      if (unit.kind != plan::UnitKind::kAdapter) {
        continue;
      }
      ++seen;
      const Json& expected = golden_["gradients"][tensor.name];
      double squares = 0;
      double products[2] = {};
      for (int64_t i = 0; i < tensor.count(); ++i) {
        const double value = sink.gradient(unit.index)[static_cast<size_t>(tensor.offset + i)];
        squares += value * value;
        for (int k = 0; k < 2; ++k) {
          products[k] += value * ReferenceValue(fmt::format("{} {}", tensor.name, k), i);
        }
      }
      const double norm = expected["norm"];
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-4 * norm) << tensor.name;
      for (size_t k = 0; k < 2; ++k) {
        EXPECT_NEAR(products[k], expected["products"][k].get<double>(), 1e-4 * norm) << tensor.name;
      }
    }
  }
  EXPECT_EQ(seen, golden_["gradients"].size());
}

TEST_P(Lora, TwentyStepsHaveTheLossesOfPeft) {
  const auto model = MakeModel(spec_);
  std::vector<plan::UnitSpec> trained = model->units();
  for (plan::UnitSpec& unit : trained) {
    if (unit.kind != plan::UnitKind::kAdapter) {
      unit.tensors.clear();
    }
  }
  MemoryUnitSource source = Weights(DType::kF32);
  MemoryGradientSink sink(model->units());
  ReferenceAdamW optimizer(golden_["adamw"], trained);
  const auto gradient = [&](int unit) { return sink.gradient(unit); };
  for (size_t step = 0; step < golden_["losses"].size(); ++step) {
    EXPECT_NEAR(Pass(*model, source, sink), golden_["losses"][step].get<double>(), 1e-5)
        << "step " << step;
    optimizer.Step([&](int unit) { return source.weights(unit); }, gradient,
                   NormOf(NormsByTensor(trained, gradient)));
  }
}

TEST_P(Lora, MergedIsAsUnmerged) {
  const std::vector<float> unmerged = Logits(spec_, Weights(DType::kF32));
  const std::vector<float> merged =
      Logits(base_, *MemoryUnitSource::Load(plan::BuildUnits(base_), DType::kF32,
                                            plan::MergedWeights(spec_, Reader())));
  const double tolerance = 1e-5 * Largest(unmerged);
  for (size_t i = 0; i < merged.size(); ++i) {
    EXPECT_NEAR(merged[i], unmerged[i], tolerance);
  }
}

TEST_P(Lora, AFolderOfOursIsReadBack) {
  const TemporaryFolder ours;
  ASSERT_OK(formats::WritePeftAdapter(ours.path(), spec_, Reader(), {.base_model = "model"}));
  const auto again = formats::PeftAdapter::Open(ours.path(), base_);
  ASSERT_OK(again.status());
  EXPECT_EQ((*again)->spec().adapters.size(), spec_.adapters.size());
  for (const plan::UnitSpec& unit : plan::BuildUnits(spec_)) {
    if (unit.kind == plan::UnitKind::kAdapter) {
      std::vector<float> before(static_cast<size_t>(unit.count));
      std::vector<float> after(before.size());
      ASSERT_OK(adapter_->ReadUnit(unit.index, 0, before));
      ASSERT_OK((*again)->ReadUnit(unit.index, 0, after));
      EXPECT_EQ(before, after) << unit.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Lora,
                         testing::Values("gemma3", "llama", "olmo2", "phi3", "qwen3"));

}  // namespace
}  // namespace shoal::worker
