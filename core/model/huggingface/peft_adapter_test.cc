// What of PEFT's folders is read, what is refused, and in which words.
#include "core/model/huggingface/peft_adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/model/adapters.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/safetensors.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Shapes = std::map<std::string, std::vector<int64_t>>;

class PeftAdapterTest : public ::testing::Test {
 protected:
  std::string NameOf(const std::string& module, char a_or_b) const {
    return fmt::format("base_model.model.{}.lora_{}.weight", module, a_or_b);
  }
  void SetUp() override {
    const std::string module = "model.layers.1.self_attn.q_proj";
    shapes_[NameOf(module, 'A')] = {8, base_.hidden};
    shapes_[NameOf(module, 'B')] = {base_.attention().q_size(), 8};
  }
  absl::StatusOr<std::unique_ptr<PeftAdapter>> Open() {
    EXPECT_THAT(WriteFileAtomically(folder_.path() + "/adapter_config.json", config_.dump()),
                IsOk());
    std::vector<SafetensorsTensor> tensors;
    int64_t bytes = 0;
    for (const auto& [name, shape] : shapes_) {
      tensors.push_back({name, DType::kF32, shape});
      int64_t count = 4;
      for (const int64_t side : shape) {
        count *= side;
      }
      bytes += count;
    }
    auto writer =
        SafetensorsWriter::Create(folder_.path() + "/adapter_model.safetensors", tensors, {});
    EXPECT_THAT((*writer)->Append(std::vector<std::byte>(static_cast<size_t>(bytes))), IsOk());
    EXPECT_THAT((*writer)->Finish(), IsOk());
    return PeftAdapter::Open(folder_.path(), base_);
  }
  std::string Refusal() { return std::string(Message(Open().status())); }
  // Of a configuration with this key besides.
  std::string RefusalOf(const std::string& key, const Json& value) {
    const Json before = std::exchange(config_[key], value);
    const std::string refusal = Refusal();
    before.is_null() ? static_cast<void>(config_.erase(key))
                     : static_cast<void>(config_[key] = before);
    return refusal;
  }

  const plan::ModelSpec base_ = *plan::NamedShape("tiny");
  const TemporaryFolder folder_;
  Json config_ = {{"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 16}};
  Shapes shapes_;
};

TEST_F(PeftAdapterTest, TheRankIsThatOfTheTensorsAndOfTheConfiguration) {
  const auto adapter = Open();
  ASSERT_OK(adapter.status());
  EXPECT_THAT(
      (*adapter)->spec().adapters,
      ElementsAre(plan::Adapter{.layer = 1, .role = plan::Role::kQ, .rank = 8, .scale = 2}));
  config_["r"] = 4;
  EXPECT_EQ(Refusal(), folder_.path() +
                           "/adapter_config.json: r and rank_pattern say 4 of "
                           "model.layers.1.self_attn.q_proj, whose tensors have rank 8");
  config_["rank_pattern"] = {{"k_proj", 2}, {"self_attn.q_proj", 8}};
  EXPECT_EQ(Open().value()->spec(), (*adapter)->spec());
}

TEST_F(PeftAdapterTest, TheScaleIsThatOfTheConfiguration) {
  const auto scale = [&] { return Open().value()->spec().adapters.at(0).scale; };
  config_["use_rslora"] = true;
  EXPECT_DOUBLE_EQ(scale(), 16 / std::sqrt(8.0));
  config_["use_rslora"] = false;
  config_["alpha_pattern"] = {{"k_proj", 4}, {"1.self_attn.q_proj", 24}};
  EXPECT_DOUBLE_EQ(scale(), 3);
  config_["alpha_pattern"] = {{"layers.1.self_attn.q_proj", 32}, {"q_proj", 32}};
  EXPECT_DOUBLE_EQ(scale(), 4);
  config_["alpha_pattern"]["q_proj"] = 8;
  EXPECT_EQ(Refusal(), folder_.path() +
                           "/adapter_config.json: alpha_pattern: 'layers.1.self_attn.q_proj' says "
                           "32 of model.layers.1.self_attn.q_proj, 'q_proj' says 8: keep one of "
                           "them");
}

TEST_F(PeftAdapterTest, IsWrittenByEitherScale) {
  for (const double alpha : {16.0, 0.1}) {
    for (const bool rslora : {true, false}) {
      config_["lora_alpha"] = alpha;
      config_["use_rslora"] = rslora;
      const auto adapter = Open().value();
      const std::string folder = folder_.path() + "/written";
      const auto read = [&](int unit, int64_t offset, std::span<float> out) {
        return adapter->ReadUnit(unit, offset, out);
      };
      ASSERT_OK(WritePeftAdapter(folder, adapter->spec(), read, {.rank_stabilized = rslora}));
      const Json config = Json::parse(ReadFile(folder + "/adapter_config.json").value());
      EXPECT_EQ(config["use_rslora"], rslora);
      EXPECT_EQ(config["lora_alpha"], alpha);
      EXPECT_EQ(PeftAdapter::Open(folder, base_).value()->spec(), adapter->spec());
    }
  }
}

TEST_F(PeftAdapterTest, WhatIsOfTrainingAloneChangesNothing) {
  const auto before = Open().value()->spec();
  config_.update({{"lora_dropout", 0.5},
                  {"init_lora_weights", "gaussian"},
                  {"task_type", "CAUSAL_LM"},
                  {"bias", "none"},
                  {"use_dora", false},
                  {"exclude_modules", {"lm_head"}},
                  {"modules_to_save", nullptr},
                  {"loftq_config", Json::object()}});
  EXPECT_EQ(Open().value()->spec(), before);
}

TEST_F(PeftAdapterTest, RefusesWhatIsAnotherMathematics) {
  const std::string file = folder_.path() + "/adapter_config.json: ";
  EXPECT_EQ(RefusalOf("peft_type", "IA3"), file + "peft_type: 'IA3' is not supported; LORA is");
  EXPECT_EQ(RefusalOf("lora_bias", true), file + "lora_bias: true is not supported; false is");
  EXPECT_EQ(RefusalOf("use_dora", true), file + "use_dora: true is not supported; false is");
  EXPECT_EQ(RefusalOf("bias", "all"), file + "bias: \"all\" is not supported; \"none\" is");
  EXPECT_EQ(RefusalOf("modules_to_save", {"lm_head"}),
            file + "modules_to_save: [\"lm_head\"] is not supported; null is");
  EXPECT_EQ(RefusalOf("a_later_key", 3), file + "a_later_key: 3 is not supported");
  EXPECT_THAT(RefusalOf("init_lora_weights", "pissa"),
              HasSubstr("init_lora_weights: \"pissa\" is not supported; true is"));
  EXPECT_THAT(RefusalOf("alpha_pattern", {{"layers.*", 3}}),
              HasSubstr("alpha_pattern: layers.*: a pattern that is no name is not supported"));
}

TEST_F(PeftAdapterTest, RefusesTensorsThatAreNoAdaptersOfTheModel) {
  const std::string file = folder_.path() + "/adapter_model.safetensors: ";
  const Shapes right = shapes_;
  const std::string b = NameOf("model.layers.1.self_attn.q_proj", 'B');
  shapes_.erase(b);
  EXPECT_EQ(Refusal(), file + "tensor '" + b + "' is missing");
  shapes_[b] = {base_.attention().q_size(), 4};
  EXPECT_THAT(Refusal(), HasSubstr("has shape [48, 4], the model asks for [48, 8]"));
  shapes_ = right;
  shapes_[NameOf("model.layers.1.self_attn.k_prj", 'A')] = {8, base_.hidden};
  EXPECT_THAT(Refusal(), HasSubstr(file + "'model.layers.1.self_attn.k_prj': the model has no such "
                                          "module; did you mean model.layers.1.self_attn.k_proj?"));
  shapes_ = right;
  shapes_[NameOf("model.layers.1.self_attn.k_proj", 'B')] = {base_.attention().kv_size(), 8};
  EXPECT_THAT(Refusal(), HasSubstr("k_proj.lora_B.weight' has no lora_A"));
  shapes_ = right;
  shapes_["base_model.model.lm_head.weight"] = {4, 4};
  EXPECT_EQ(Refusal(), file + "tensor 'base_model.model.lm_head.weight' [4, 4] is not supported");
  shapes_.clear();
  EXPECT_THAT(Refusal(), HasSubstr("adapter_model.safetensors has no adapter"));
}

// By PEFT: uniform within the inverse root of the inputs, and zero.
TEST(InitialWeights, OfAdaptersDependOnSeedAndPlaceAlone) {
  const plan::ModelSpec spec =
      plan::WithAdapters(*plan::NamedShape("25m"), {"down_proj"}, /*rank=*/16, 1).value();
  const plan::UnitSpec unit = plan::BuildUnits(spec).back();
  std::vector<float> values(static_cast<size_t>(unit.count));
  ASSERT_OK(InitialWeights(spec, 1)(unit.index, 0, values));
  const plan::TensorSpec& a = unit.tensors.at(0);
  const double bound = 1 / std::sqrt(static_cast<double>(spec.mlp().intermediate));
  double squares = 0;
  for (int64_t i = 0; i < a.count(); ++i) {
    const double value = values[static_cast<size_t>(i)];
    ASSERT_LE(std::abs(value), bound);
    squares += value * value;
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(a.count())), bound / std::sqrt(3.0),
              0.02 * bound);
  for (int64_t i = unit.tensors.at(1).offset; i < unit.count; ++i) {
    ASSERT_EQ(values[static_cast<size_t>(i)], 0);
  }
  std::vector<float> part(1000);
  ASSERT_OK(InitialWeights(spec, 1)(unit.index, 1234, part));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 1234));
  ASSERT_OK(InitialWeights(spec, 2)(unit.index, 1234, part));
  EXPECT_FALSE(std::equal(part.begin(), part.end(), values.begin() + 1234));
}

}  // namespace
}  // namespace shoal::formats
