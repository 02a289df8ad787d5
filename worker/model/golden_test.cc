// Compares the real model stories260k with a float64 reference (golden/stories260k_steps.json):
// loss, logits and every tensor's gradient of three AdamW steps, and greedy generation.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "core/model/huggingface/hf_model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/generate.h"
#include "worker/model/golden_steps.h"
#include "worker/model/runner.h"

namespace shoal::worker {
namespace {

using Json = nlohmann::json;

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("SHOAL_TEST_DATA");
    if (folder == nullptr) {
      GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
    }
    folder_ = folder;
    auto hf = formats::HfModel::Open(folder_ + "/stories260k");
    ASSERT_TRUE(hf.ok()) << hf.status().message();
    hf_ = *std::move(hf);
  }

  std::unique_ptr<Transformer> MakeModel(DType compute) {
    return *Transformer::Create(hf_->spec(), {.compute = compute, .threads = 2});
  }
  MemoryUnitSource MakeSource(const Transformer& model) {
    return *MemoryUnitSource::Load(model.units(), model.compute(),
                                   [&](int unit, int64_t offset, std::span<float> out) {
                                     return hf_->ReadUnit(unit, offset, out);
                                   });
  }

  Json ReadGolden() const { return *ReadGoldenSteps(folder_); }

  std::string folder_;
  std::unique_ptr<formats::HfModel> hf_;
};

std::map<std::string, TensorNorms> NormsOf(const std::vector<plan::UnitSpec>& units,
                                           const MemoryGradientSink& sink) {
  return NormsByTensor(units, [&](int unit) { return sink.gradient(unit); });
}

void ExpectLogits(Transformer& model, MemoryUnitSource& source, const PackedBatch& batch,
                  const Json& step) {
  const int32_t last = static_cast<int32_t>(batch.token_count()) - 1;
  const int32_t positions[] = {0, last};
  const auto logits = ComputeLogits(model, batch, positions, source);
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  const auto vocabulary = static_cast<size_t>(model.spec().vocabulary);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR((*logits)[i], step["logits_row0_pos0_first8"][i].get<double>(), 2e-4);
    EXPECT_NEAR((*logits)[vocabulary + i], step["logits_row0_last_first8"][i].get<double>(), 2e-4);
  }
}

TEST_F(Golden, ThreeStepsAgreeWithTheReference) {
  const Json golden = ReadGolden();
  const std::unique_ptr<Transformer> model = MakeModel(DType::kF32);
  MemoryUnitSource source = MakeSource(*model);
  MemoryGradientSink sink(model->units());
  ReferenceAdamW optimizer(golden["adamw"], model->units());
  const std::vector<PackedBatch> batches = GoldenMicrobatches(golden);
  for (const Json& step : golden["steps"]) {
    const bool in_full = step.contains("grads");  // logits and tensors are given for the first step
    if (in_full) {
      ExpectLogits(*model, source, batches[0], step);
    }
    sink.Clear();
    const double targets = step["targets"];
    double loss = 0;
    int64_t counted = 0;
    for (const PackedBatch& batch : batches) {
      const auto result = RunMicrobatch(*model, batch, 1.0 / targets, source, sink);
      ASSERT_TRUE(result.ok()) << result.status().message();
      loss += result->loss_sum;
      counted += result->targets;
    }
    EXPECT_EQ(counted, targets);
    const double expected_loss = step["loss"];
    EXPECT_NEAR(loss / targets / expected_loss, 1.0, 1e-5);
    const auto norms_by_tensor = NormsOf(model->units(), sink);
    for (const auto& [name, norms] : norms_by_tensor) {
      if (in_full) {
        const Json& expected = step["grads"][name];
        const double l2 = expected["l2"];
        EXPECT_NEAR(norms.l2 / l2, 1.0, 1e-4) << name;
        EXPECT_NEAR(norms.sum, expected["sum"].get<double>(), 1e-3 * l2) << name;
      }
    }
    const double norm = NormOf(norms_by_tensor);
    EXPECT_NEAR(norm / step["grad_norm"].get<double>(), 1.0, 1e-4);
    optimizer.Step([&](int unit) { return source.weights(unit); },
                   [&](int unit) { return sink.gradient(unit); }, norm);
    double parameters = 0;
    for (const plan::UnitSpec& unit : model->units()) {
      for (const float value : source.weights(unit.index)) {
        parameters += static_cast<double>(value) * static_cast<double>(value);
      }
    }
    EXPECT_NEAR(std::sqrt(parameters) / step["param_l2_after"].get<double>(), 1.0, 1e-6);
  }
}

TEST_F(Golden, Bf16IsClose) {
  const Json golden = ReadGolden();
  const std::unique_ptr<Transformer> model = MakeModel(DType::kBF16);
  MemoryUnitSource source = MakeSource(*model);
  MemoryGradientSink sink(model->units());
  const Json& step = golden["steps"][0];
  const double targets = step["targets"];
  double loss = 0;
  for (const PackedBatch& batch : GoldenMicrobatches(golden)) {
    loss += RunMicrobatch(*model, batch, 1.0 / targets, source, sink)->loss_sum;
  }
  EXPECT_NEAR(loss / targets / step["loss"].get<double>(), 1.0, 0.01);
  for (const auto& [name, norms] : NormsOf(model->units(), sink)) {
    EXPECT_NEAR(norms.l2 / step["grads"][name]["l2"].get<double>(), 1.0, 0.1) << name;
  }
}

// "Once upon a time" after a begin-of-sequence token, and the text with which the model continues;
// token by token from tokenizer.json, so that this test needs no tokenizer.
TEST_F(Golden, GoesOnWithTheStory) {
  std::ifstream file(folder_ + "/stories260k/tokenizer.json");
  const Json vocabulary = Json::parse(file)["model"]["vocab"];
  std::map<int32_t, std::string> pieces;
  for (const auto& [piece, id] : vocabulary.items()) {
    pieces[id.get<int32_t>()] = piece;
  }
  const std::unique_ptr<Transformer> model = MakeModel(DType::kF32);
  MemoryUnitSource source = MakeSource(*model);
  const std::vector<int32_t> prompt = {1, 403, 407, 261, 378};
  const auto tokens = Generate(*model, source, prompt, {.max_new_tokens = 40});
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  const std::string_view marker = "\u2581";  // stands for a space
  std::string text;
  for (const int32_t token : *tokens) {
    std::string_view piece = pieces[token];
    if (piece.starts_with(marker)) {
      text.push_back(' ');
      piece.remove_prefix(marker.size());
    }
    text.append(piece);
  }
  EXPECT_EQ(text.substr(0, 110),
            ", there was a little girl named Lily. She loved to play outside in the park. One day, "
            "she saw a big, red ball.");
  EXPECT_EQ(source.held(), 0);
}

}  // namespace
}  // namespace shoal::worker
