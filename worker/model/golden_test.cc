// The real model stories260k against a float64 reference (golden/stories260k_steps.json): loss,
// logits and every tensor's gradient of three AdamW steps, and greedy generation.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "formats/hf_model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/model/generate.h"
#include "worker/model/memory_unit_access.h"
#include "worker/model/runner.h"

namespace shoal::worker {
namespace {

using Json = nlohmann::json;

// AdamW as the golden file states it: decoupled decay on tensors of rank 2, clipping by the global
// norm.
class ReferenceAdamW {
 public:
  ReferenceAdamW(const Json& options, const std::vector<plan::UnitSpec>& units)
      : options_(options), units_(units) {
    for (const plan::UnitSpec& unit : units) {
      moments_.emplace_back(static_cast<size_t>(unit.count));
    }
  }

  void Step(MemoryUnitSource& weights, const MemoryGradientSink& gradients, double norm) {
    ++step_;
    const double clip = std::min(1.0, options_["clip_norm"].get<double>() / (norm + 1e-6));
    const double beta1 = options_["beta1"], beta2 = options_["beta2"], rate = options_["lr"];
    for (const plan::UnitSpec& unit : units_) {
      const std::span<float> values = weights.weights(unit.index);
      for (const plan::TensorSpec& tensor : unit.tensors) {
        const double decay = tensor.decays() ? options_["weight_decay"].get<double>() : 0.0;
        for (int64_t i = tensor.offset; i < tensor.offset + tensor.count(); ++i) {
          const auto at = static_cast<size_t>(i);
          const double gradient = gradients.gradient(unit.index)[at] * clip;
          auto& [m, v] = moments_[static_cast<size_t>(unit.index)][at];
          m = beta1 * m + (1 - beta1) * gradient;
          v = beta2 * v + (1 - beta2) * gradient * gradient;
          const double m_hat = m / (1 - std::pow(beta1, step_));
          const double v_hat = v / (1 - std::pow(beta2, step_));
          const double value = values[at] * (1 - rate * decay);
          values[at] = static_cast<float>(
              value - rate * m_hat / (std::sqrt(v_hat) + options_["eps"].get<double>()));
        }
      }
    }
  }

 private:
  const Json options_;
  const std::vector<plan::UnitSpec> units_;
  std::vector<std::vector<std::pair<double, double>>> moments_;
  int step_ = 0;
};

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

  static std::vector<PackedBatch> Rows(const Json& golden) {
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

  Json ReadGolden() const {
    std::ifstream file(folder_ + "/golden/stories260k_steps.json");
    return Json::parse(file);
  }

  std::string folder_;
  std::unique_ptr<formats::HfModel> hf_;
};

struct Norms {
  double l2 = 0;
  double sum = 0;
};

std::map<std::string, Norms> NormsByTensor(const std::vector<plan::UnitSpec>& units,
                                           const MemoryGradientSink& sink) {
  std::map<std::string, Norms> norms;
  for (const plan::UnitSpec& unit : units) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      double squares = 0;
      Norms& result = norms[tensor.name];
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.count(); ++i) {
        const double value = sink.gradient(unit.index)[static_cast<size_t>(i)];
        squares += value * value;
        result.sum += value;
      }
      result.l2 = std::sqrt(squares);
    }
  }
  return norms;
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
  const std::vector<PackedBatch> batches = Rows(golden);
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
    double squares = 0;
    for (const auto& [name, norms] : NormsByTensor(model->units(), sink)) {
      squares += norms.l2 * norms.l2;
      if (in_full) {
        const Json& expected = step["grads"][name];
        const double l2 = expected["l2"];
        EXPECT_NEAR(norms.l2 / l2, 1.0, 1e-4) << name;
        EXPECT_NEAR(norms.sum, expected["sum"].get<double>(), 1e-3 * l2) << name;
      }
    }
    const double norm = std::sqrt(squares);
    EXPECT_NEAR(norm / step["grad_norm"].get<double>(), 1.0, 1e-4);
    optimizer.Step(source, sink, norm);
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
  for (const PackedBatch& batch : Rows(golden)) {
    loss += RunMicrobatch(*model, batch, 1.0 / targets, source, sink)->loss_sum;
  }
  EXPECT_NEAR(loss / targets / step["loss"].get<double>(), 1.0, 0.01);
  for (const auto& [name, norms] : NormsByTensor(model->units(), sink)) {
    EXPECT_NEAR(norms.l2 / step["grads"][name]["l2"].get<double>(), 1.0, 0.1) << name;
  }
}

// "Once upon a time" with a begin-of-sequence token before it, and the text the model goes on with;
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
