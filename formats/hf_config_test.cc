#include "common/file.h"
#include "formats/hf_model.h"
#include "formats/testing.h"
#include "nlohmann/json.hpp"

namespace shoal::formats {
namespace {

using nlohmann::json;

json Llama() {
  return json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4})");
}
json Qwen2() {
  json config = Llama();
  config["architectures"] = {"Qwen2ForCausalLM"};
  return config;
}
absl::StatusOr<plan::ModelSpec> Parse(const json& config) {
  return ParseModelSpec(config.dump(), "config.json");
}
absl::Status Refusal(json config, const std::string& key, const json& value) {
  config[key] = value;
  return Parse(config).status();
}

TEST(ParseModelSpec, FillsWhatAConfigLeavesOut) {
  const auto spec = Parse(Llama());
  ASSERT_OK(spec.status());
  EXPECT_EQ(spec->head_dim, 8);
  EXPECT_EQ(spec->max_positions, 2048);
  EXPECT_EQ(spec->norm_epsilon, 1e-6);
  EXPECT_EQ(spec->rope_theta, 10000.0);
  EXPECT_FALSE(spec->tied_embeddings || spec->attention_bias || spec->mlp_bias ||
               spec->rope_scaling);
  json config = Llama();
  config.erase("num_key_value_heads");
  config["head_dim"] = 32;
  EXPECT_EQ(Parse(config)->kv_heads, 8);
  EXPECT_EQ(Parse(config)->q_size(), 256);
  config.erase("architectures");
  config["model_type"] = "qwen2";
  EXPECT_EQ(Parse(config)->architecture, "Qwen2ForCausalLM");
}

TEST(ParseModelSpec, PutsBiasesWhereTheArchitectureHasThem) {
  json config = Llama();
  config["attention_bias"] = true;
  EXPECT_TRUE(Parse(config)->attention_bias);
  EXPECT_TRUE(Parse(config)->output_bias);
  EXPECT_TRUE(Parse(Qwen2())->attention_bias);
  EXPECT_FALSE(Parse(Qwen2())->output_bias);
}

TEST(ParseModelSpec, ReadsBothSpellingsOfRope) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const plan::RopeScaling expected{32.0, 1.0, 4.0, 8192};
  json config = Llama();
  config["rope_scaling"] = llama3;
  config["rope_theta"] = 500000;
  EXPECT_EQ(Parse(config)->rope_scaling, expected);
  EXPECT_EQ(Parse(config)->rope_theta, 500000.0);

  json newer = Llama();
  newer["rope_parameters"] = llama3;
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(*Parse(newer), *Parse(config));
  config["rope_scaling"] = {{"type", "default"}};
  EXPECT_FALSE(Parse(config)->rope_scaling.has_value());
  config["rope_scaling"] = nullptr;
  EXPECT_FALSE(Parse(config)->rope_scaling.has_value());
}

TEST(ParseModelSpec, RefusesByName) {
  EXPECT_REFUSED(ParseModelSpec("{", "config.json").status(), "config.json: not a JSON object");
  EXPECT_REFUSED(Refusal(Llama(), "architectures", {"MistralForCausalLM"}),
                 "'MistralForCausalLM' is not supported");
  EXPECT_REFUSED(Refusal(Llama(), "architectures", json::array()), "architectures");
  EXPECT_REFUSED(Refusal(Llama(), "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}),
                 "'yarn' is not supported");
  EXPECT_REFUSED(Refusal(Llama(), "rope_scaling", {{"type", "linear"}}),
                 "'linear' is not supported");
  EXPECT_REFUSED(Refusal(Llama(), "rope_scaling", {{"rope_type", "llama3"}}),
                 "rope_scaling: factor is missing");
  EXPECT_REFUSED(Refusal(Llama(), "rope_scaling", 3), "rope_scaling is not an object");
  EXPECT_REFUSED(Refusal(Llama(), "rope_parameters", {{"partial_rotary_factor", 0.5}}),
                 "partial_rotary_factor");
  EXPECT_REFUSED(Refusal(Llama(), "hidden_act", "gelu"), "hidden_act 'gelu'");
  EXPECT_REFUSED(Refusal(Llama(), "quantization_config", {{"bits", 4}}), "quantization_config");
  EXPECT_REFUSED(Refusal(Llama(), "sliding_window", 4096), "sliding_window");
  EXPECT_REFUSED(Refusal(Qwen2(), "use_sliding_window", true), "use_sliding_window");
  EXPECT_REFUSED(Refusal(Qwen2(), "layer_types", {"full_attention", "sliding_attention"}),
                 "sliding_attention");
  ASSERT_OK(Refusal(Qwen2(), "sliding_window", 32768));
  ASSERT_OK(Refusal(Qwen2(), "layer_types", {"full_attention"}));
  EXPECT_REFUSED(Refusal(Llama(), "vocab_size", nullptr), "vocab_size is missing");
  EXPECT_REFUSED(Refusal(Llama(), "vocab_size", "many"),
                 "vocab_size is \"many\", expected an integer");
  EXPECT_REFUSED(Refusal(Llama(), "vocab_size", 1.5), "expected an integer");
  EXPECT_REFUSED(Refusal(Llama(), "vocab_size", uint64_t{1} << 63), "expected an integer");
  EXPECT_REFUSED(Refusal(Llama(), "vocab_size", 0), "vocab_size is 0");
  EXPECT_REFUSED(Refusal(Llama(), "num_hidden_layers", 1000000), "num_hidden_layers");
  EXPECT_REFUSED(Refusal(Llama(), "num_attention_heads", 0), "num_attention_heads");
  EXPECT_REFUSED(Refusal(Llama(), "num_attention_heads", 7), "hidden_size 64 is not a multiple");
  EXPECT_REFUSED(Refusal(Llama(), "num_key_value_heads", 3), "num_key_value_heads");
  EXPECT_REFUSED(Refusal(Llama(), "tie_word_embeddings", "yes"), "expected true or false");
  EXPECT_REFUSED(Refusal(Llama(), "rms_norm_eps", "1e-5"), "expected a number");
}

TEST(ModelSpecToJson, RoundTripsEveryShape) {
  for (const std::string& name : plan::NamedShapes()) {
    plan::ModelSpec spec = *plan::NamedShape(name);
    for (const bool scaled : {false, true}) {
      spec.rope_scaling =
          scaled ? std::optional<plan::RopeScaling>({8.0, 1.5, 3.25, 4096}) : std::nullopt;
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const std::string text = ModelSpecToJson(spec, dtype, {.bos = 1, .eos = 2});
        const auto reread = ParseModelSpec(text, name);
        ASSERT_OK(reread.status());
        EXPECT_EQ(*reread, spec) << text;
      }
    }
  }
}

TEST(ReadSpecialTokens, LooksWhereModelsKeepThem) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const json& value) {
    ASSERT_OK(WriteFileAtomically(folder / name, value.dump()));
  };
  EXPECT_EQ(ReadSpecialTokens(folder.path())->eos, -1);
  write("tokenizer.json",
        {{"added_tokens", {{{"id", 7}, {"content", "<s>"}}, {{"id", 9}, {"content", "<|eot|>"}}}}});
  write("tokenizer_config.json", {{"bos_token", {{"content", "<s>"}}}, {"eos_token", "<|eot|>"}});
  EXPECT_EQ(ReadSpecialTokens(folder.path())->bos, 7);
  EXPECT_EQ(ReadSpecialTokens(folder.path())->eos, 9);
  EXPECT_EQ(ReadSpecialTokens(folder.path())->stops, std::vector<int64_t>({9}));
  write("generation_config.json", {{"bos_token_id", 7}, {"eos_token_id", {8, 9}}});
  EXPECT_EQ(ReadSpecialTokens(folder.path())->eos, 9);  // of those listed, the tokenizer's
  EXPECT_EQ(ReadSpecialTokens(folder.path())->stops, std::vector<int64_t>({8, 9}));
  write("config.json", {{"bos_token_id", nullptr}, {"eos_token_id", 5}});
  EXPECT_EQ(ReadSpecialTokens(folder.path())->stops, std::vector<int64_t>({5, 8, 9}));
  write("config.json", {{"eos_token_id", "</s>"}});
  EXPECT_REFUSED(ReadSpecialTokens(folder.path()).status(), "eos_token_id");
}

}  // namespace
}  // namespace shoal::formats
