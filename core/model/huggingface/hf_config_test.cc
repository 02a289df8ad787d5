#include <cmath>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/testing/small_configs.h"

namespace shoal::formats {
namespace {

using nlohmann::json;

TEST(ParseModelSpec, FillsWhatAConfigLeavesOut) {
  const auto spec = Parse(Llama());
  ASSERT_OK(spec.status());
  EXPECT_EQ(spec->attention().head_dim, 8);
  EXPECT_EQ(spec->max_positions, 2048);
  EXPECT_EQ(spec->norm_epsilon, 1e-6);
  EXPECT_EQ(spec->attention().rope, plan::Rope());
  EXPECT_FALSE(spec->tied_embeddings || spec->attention().qkv_bias || spec->mlp().bias);
  json config = Llama();
  config.erase("num_key_value_heads");
  config["head_dim"] = 32;
  EXPECT_EQ(Parse(config)->attention().kv_heads, 8);
  EXPECT_EQ(Parse(config)->attention().q_size(), 256);
  config["num_attention_heads"] = 16;
  config["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(Parse(config)->attention().kv_heads, 8);
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Parse(config)->attention().kv_heads, 16);
  config.erase("architectures");
  config["model_type"] = "qwen2";
  EXPECT_EQ(Parse(config)->family, "qwen2");
}

TEST(ParseModelSpec, PutsBiasesWhereTheArchitectureHasThem) {
  json config = Llama();
  config["attention_bias"] = true;
  EXPECT_TRUE(Parse(config)->attention().qkv_bias);
  EXPECT_TRUE(Parse(config)->attention().output_bias);
  EXPECT_TRUE(Parse(Qwen2())->attention().qkv_bias);
  EXPECT_FALSE(Parse(Qwen2())->attention().output_bias);
}

TEST(ParseModelSpec, ReadsWindows) {
  const auto windows = [](const json& config) {
    const auto spec = Parse(config);
    EXPECT_THAT(spec.status(), IsOk());
    std::vector<int64_t> found;
    for (int64_t layer = 0; spec.ok() && layer < spec->layers; ++layer) {
      found.push_back(spec->block(layer).attention.window);
    }
    EXPECT_EQ(*ParseModelSpec(ModelSpecToJson(*spec, DType::kF32, {}), "own"), *spec);
    return found;
  };
  using Windows = std::vector<int64_t>;
  json mistral = Llama();
  mistral["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(windows(mistral), Windows(5, 4096)) << "absent";
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(windows(mistral), Windows(5, 0));
  mistral["sliding_window"] = 7;
  EXPECT_EQ(windows(mistral), Windows(5, 7));
  mistral["use_sliding_window"] = false;
  EXPECT_EQ(windows(mistral), Windows(5, 7)) << "no key of this family's";
  mistral["layer_types"] = json(5, "sliding_attention");
  EXPECT_EQ(windows(mistral), Windows(5, 7));
  mistral["layer_types"][2] = "full_attention";
  EXPECT_REFUSED(Parse(mistral).status(), "layer_types contradicts sliding_window");
  mistral.erase("layer_types");
  mistral["sliding_window"] = 0;
  EXPECT_REFUSED(Parse(mistral).status(), "config.json: sliding_window");

  json qwen = Qwen2();
  qwen["sliding_window"] = 7;
  EXPECT_EQ(windows(qwen), Windows(5, 0)) << "counts only with use_sliding_window";
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(windows(qwen), Windows(5, 0)) << "max_window_layers is 28";
  qwen["max_window_layers"] = 2;
  EXPECT_EQ(windows(qwen), Windows({0, 0, 7, 7, 7}));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention",
                         "full_attention", "full_attention"};
  EXPECT_EQ(windows(qwen), Windows({7, 0, 7, 0, 0})) << "layer_types wins";
}

json Gemma2() {
  json config = Llama();
  config["architectures"] = {"Gemma2ForCausalLM"};
  return config;
}

// As the library has them.
TEST(ParseModelSpec, FillsWhatGemma2LeavesOut) {
  const auto spec = Parse(Gemma2());
  ASSERT_OK(spec.status());
  EXPECT_EQ(spec->attention().head_dim, 256);
  EXPECT_EQ(spec->attention().query_scalar, 256);
  EXPECT_EQ(spec->attention().softcap, 50);
  EXPECT_EQ(spec->logits_softcap, 30);
  EXPECT_EQ(spec->mlp().gate, plan::Gate::kGeluTanh);
  EXPECT_EQ(spec->norm_offset, 1);
  EXPECT_TRUE(spec->tied_embeddings && spec->scaled_embeddings);
  for (int64_t layer = 0; layer < spec->layers; ++layer) {
    EXPECT_EQ(spec->block(layer).attention.window, layer % 2 == 0 ? 4096 : 0) << layer;
  }
  json config = Gemma2();
  config["attn_logit_softcapping"] = nullptr;
  config["final_logit_softcapping"] = nullptr;
  config["hidden_act"] = "gelu";  // of old files; the library does not look at it
  const auto uncapped = Parse(config);
  ASSERT_OK(uncapped.status());
  EXPECT_EQ(uncapped->attention().softcap, 0);
  EXPECT_EQ(uncapped->logits_softcap, 0);
  config["query_pre_attn_scalar"] = 144.5;
  const auto broken = Parse(config);
  ASSERT_OK(broken.status());
  for (const plan::ModelSpec& each : {*spec, *uncapped, *broken}) {
    EXPECT_EQ(*ParseModelSpec(ModelSpecToJson(each, DType::kF32, {}), "own"), each);
  }
  const json own = json::parse(ModelSpecToJson(*spec, DType::kF32, {}));
  EXPECT_TRUE(own["query_pre_attn_scalar"].is_number_integer()) << "transformers 5 has an int";
}

// As on the hub, from before layer_types.
TEST(ParseModelSpec, ReadsGemma3sPatternAndBothThetas) {
  json config = Llama();
  config["architectures"] = {"Gemma3ForCausalLM"};
  config["num_hidden_layers"] = 13;
  config["sliding_window"] = 512;
  config["rope_scaling"] = json::parse(R"({"rope_type": "linear", "factor": 8.0})");
  const auto full_every = [&](int64_t every) {
    const auto spec = Parse(config);
    EXPECT_THAT(spec.status(), IsOk());
    for (int64_t layer = 0; layer < spec->layers; ++layer) {
      const plan::Attention& attention = spec->block(layer).attention;
      const bool full = (layer + 1) % every == 0;
      EXPECT_EQ(attention.window, full ? 0 : 512) << layer;
      EXPECT_EQ(attention.rope.theta, full ? 1e6 : 1e4) << layer;
      EXPECT_EQ(attention.rope.scaling.has_value(), full) << layer;
    }
    EXPECT_EQ(*ParseModelSpec(ModelSpecToJson(*spec, DType::kF32, {}), "own"), *spec);
    const json own = json::parse(ModelSpecToJson(*spec, DType::kF32, {}));
    EXPECT_EQ(own["rope_theta"], 1e6) << "transformers 4 looks there";
    EXPECT_EQ(own["rope_local_base_freq"], 1e4);
  };
  full_every(6);
  config["sliding_window_pattern"] = 2;
  full_every(2);
  EXPECT_EQ(Parse(config)->attention().softcap, 0);
  EXPECT_EQ(Parse(config)->attention().qk_norm, plan::QkNorm::kHead);
  json wrong = config;
  wrong["sliding_window_pattern"] = 0;
  EXPECT_REFUSED(Parse(wrong).status(), "config.json: sliding_window_pattern");
  wrong = config;
  wrong["attn_logit_softcapping"] = 50.0;
  EXPECT_REFUSED(Parse(wrong).status(), "attn_logit_softcapping is not supported for gemma3_text");
  wrong = config;
  wrong["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5.0}};
  EXPECT_REFUSED(Parse(wrong).status(), "rope_parameters of gemma3_text are by kind of layer");
}

TEST(ModelSpecToJson, SaysWhatGemma3sWindowsTurnByWhereAllTurnAlike) {
  json config = Llama();
  config["architectures"] = {"Gemma3ForCausalLM"};
  config["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention",
                           "sliding_attention", "full_attention"};
  config["rope_theta"] = 5e5;
  config["rope_local_base_freq"] = 5e5;
  const auto plain = Parse(config);
  ASSERT_OK(plain.status());
  const json scaled = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}};
  config["rope_parameters"] = {{"full_attention", scaled}, {"sliding_attention", scaled}};
  const auto all_scaled = Parse(config);
  ASSERT_OK(all_scaled.status());
  for (const plan::ModelSpec& each : {*plain, *all_scaled}) {
    EXPECT_EQ(each.kinds[0].attention.rope, each.kinds[1].attention.rope);
    EXPECT_EQ(*ParseModelSpec(ModelSpecToJson(each, DType::kF32, {}), "own"), each);
  }
  const json own = json::parse(ModelSpecToJson(*plain, DType::kF32, {}));
  EXPECT_EQ(own["rope_local_base_freq"], 5e5) << "transformers 4 looks there";
}

TEST(ParseModelSpec, RefusesWhatGemma2CannotBe) {
  const auto refuses = [](const char* key, const json& value, const char* message) {
    json config = Gemma2();
    config[key] = value;
    EXPECT_REFUSED(Parse(config).status(), message);
  };
  refuses("hidden_activation", "gelu",
          "config.json: hidden_activation: 'gelu' is not supported; gelu_pytorch_tanh is");
  refuses("attn_logit_softcapping", 0, "attn_logit_softcapping is 0, must be above 0");
  refuses("final_logit_softcapping", -1, "final_logit_softcapping is -1, must be above 0");
  refuses("query_pre_attn_scalar", 1e7, "query_pre_attn_scalar is 10000000, must be between");
  refuses("use_bidirectional_attention", true,
          "config.json: use_bidirectional_attention: true is not supported; false is");
  json llama = Llama();
  llama["attn_logit_softcapping"] = 50.0;
  EXPECT_REFUSED(Parse(llama).status(), "attn_logit_softcapping is not supported for llama");
}

TEST(ParseModelSpec, LayersMayHaveNoRotaryEmbedding) {
  json config = Llama();  // five layers
  config["architectures"] = {"SmolLM3ForCausalLM"};
  const auto turning = [&config] {
    std::vector<bool> turns;
    const absl::StatusOr<plan::ModelSpec> spec = Parse(config);
    EXPECT_THAT(spec, IsOk());
    for (int64_t layer = 0; spec.ok() && layer < spec->layers; ++layer) {
      turns.push_back(spec->block(layer).attention.rope.turns);
      EXPECT_EQ(spec->block(layer).attention.rope.theta, spec->attention().rope.theta);
    }
    EXPECT_EQ(*ParseModelSpec(ModelSpecToJson(*spec, DType::kF32, {}), "own"), *spec);
    return turns;
  };
  EXPECT_EQ(turning(), (std::vector<bool>{true, true, true, false, true}));
  config["no_rope_layer_interval"] = 2;
  EXPECT_EQ(turning(), (std::vector<bool>{true, false, true, false, true}));
  config["no_rope_layers"] = {0, 1, 1, 0, 0};
  EXPECT_EQ(turning(), (std::vector<bool>{false, true, true, false, false}));
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(turning(), (std::vector<bool>{false, true, true, false, false}));
  config["no_rope_layers"] = {1, 1, 1, 1, 1};
  EXPECT_EQ(turning(), std::vector<bool>(5, true));
  config["no_rope_layers"] = {1, 1, 2, 1, 1};
  EXPECT_REFUSED(Parse(config).status(), "no_rope_layers: 2 (layer 2) is not supported");
  config["no_rope_layers"] = {1, 1};
  EXPECT_REFUSED(Parse(config).status(), "no_rope_layers has 2 layers; num_hidden_layers says 5");
  config.erase("no_rope_layers");
  config["no_rope_layer_interval"] = 0;
  EXPECT_REFUSED(Parse(config).status(), "no_rope_layer_interval is 0, expected an integer from 1");
}

TEST(ParseModelSpec, SaysInWhichLine) {
  const auto refused = [](const json& config) {
    return ParseModelSpec(config.dump(2), "f").status();
  };
  json config = {{"architectures", {"LlamaForCausalLM"}}, {"hidden_size", 64}};
  EXPECT_REFUSED(refused(config), "f: vocab_size is missing");
  config["rope_scaling"] = {{"rope_type", "dynamic"}};
  config.update({{"intermediate_size", 128},
                 {"num_attention_heads", 8},
                 {"num_hidden_layers", 5},
                 {"vocab_size", 100}});
  EXPECT_REFUSED(refused(config), "f:10: rope_scaling.rope_type: 'dynamic' is not supported");
  config["rope_scaling"] = {{"factor", 0.5}, {"rope_type", "linear"}};
  EXPECT_REFUSED(refused(config), "f:9: rope_scaling: factor is 0.5");
  config["hidden_size"] = "many";
  EXPECT_REFUSED(refused(config), "f:5: hidden_size is \"many\", expected an integer");
}

TEST(ParseModelSpec, RefusesByName) {
  struct Case {
    bool qwen2;
    const char* key;
    const char* value;    // JSON
    const char* message;  // empty: it is accepted
  };
  const Case cases[] = {
      {false, "architectures", R"(["Llama4ForCausalLM"])",
       "architectures: 'Llama4ForCausalLM' is not supported; "
       "gemma2, gemma3_text, llama, mistral, olmo2, olmo3, phi3, qwen2, qwen3, smollm3 are"},
      {false, "architectures", "[]", "architectures"},
      {false, "rope_scaling", R"({"rope_type": "dynamic", "factor": 4.0})",
       "rope_scaling.rope_type: 'dynamic' is not supported; default, linear, llama3, yarn are"},
      {false, "rope_scaling", R"({"type": "linear"})", "rope_scaling.factor is missing"},
      {false, "rope_scaling", R"({"type": "linear", "factor": 0.5})", "factor is 0.5"},
      {false, "rope_scaling", R"({"type": "yarn", "factor": 4, "beta_fast": 0.5})", "yarn needs"},
      {false, "rope_scaling",
       R"({"type": "yarn", "factor": 1e13, "mscale": 1e308, "mscale_all_dim": 1})",
       "attention_factor above 0 and at most 100"},
      {false, "rope_parameters", R"({"full_attention": null})",
       "rope_parameters.full_attention is null"},
      {false, "rope_scaling", R"({"rope_type": "llama3"})", "rope_scaling.factor is missing"},
      {false, "rope_scaling", "3", "rope_scaling is 3, expected an object"},
      {false, "rope_parameters", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor"},
      {false, "partial_rotary_factor", "0.5", "partial_rotary_factor"},
      {false, "hidden_act", R"("gelu")", "hidden_act: 'gelu'"},
      {false, "quantization_config", R"({"bits": 4})", "quantization_config"},
      {false, "sliding_window", "4096", "sliding_window"},
      {true, "layer_types", R"(["full_attention", "full_attention"])",
       "layer_types has 2 layers; num_hidden_layers says 5"},
      {true, "layer_types",
       R"(["full_attention", "chunked_attention", "full_attention", "full_attention", 7])",
       "layer_types: 'chunked_attention' (layer 1) is not supported; full_attention, "
       "sliding_attention are"},
      {true, "layer_types",
       R"(["full_attention", "full_attention", "full_attention", "full_attention",
           "sliding_attention"])",
       "layer_types has sliding_attention, and no window is set"},
      {true, "sliding_window", "32768", ""},
      {false, "layer_types",
       R"(["full_attention", "full_attention", "full_attention", "full_attention",
           "full_attention"])",
       ""},
      {false, "vocab_size", "null", "vocab_size is missing"},
      {false, "vocab_size", R"("many")", "vocab_size is \"many\", expected an integer"},
      {false, "vocab_size", "1.5", "expected an integer"},
      {false, "vocab_size", "9223372036854775808", "expected an integer"},
      {false, "vocab_size", "0", "vocab_size is 0"},
      {false, "num_hidden_layers", "1000000", "num_hidden_layers"},
      {false, "num_attention_heads", "0", "num_attention_heads"},
      {false, "num_attention_heads", "7", "hidden_size is 64, no multiple"},
      {false, "num_key_value_heads", "3", "num_key_value_heads"},
      {false, "tie_word_embeddings", R"("yes")", "expected true or false"},
      {false, "rms_norm_eps", R"("1e-5")", "expected a number"},
  };
  for (const Case& test : cases) {
    json config = test.qwen2 ? Qwen2() : Llama();
    config[test.key] = json::parse(test.value);
    const absl::Status status = Parse(config).status();
    EXPECT_TRUE(*test.message == 0 ? testing::AssertionResult(status.ok())
                                   : Refuses(status, test.message))
        << test.key << ": " << test.value;
  }
  EXPECT_REFUSED(ParseModelSpec("{", "config.json").status(), "config.json: not valid JSON");
}

TEST(ParseModelSpec, RefusesDeepNesting) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_REFUSED(
      ParseModelSpec(fmt::format(R"({{"hidden_size": {}}})", deep), "config.json").status(),
      "config.json: nested more than 64 deep in 'hidden_size'");
}

TEST(ModelSpecToJson, RoundTripsEveryShape) {
  for (const std::string& name : plan::NamedShapes()) {
    plan::ModelSpec spec = *plan::NamedShape(name);
    for (const bool scaled : {false, true}) {
      spec.kinds[0].attention.rope.scaling =
          scaled ? std::optional<plan::RopeScaling>({.low_frequency_factor = 1.5,
                                                     .high_frequency_factor = 3.25,
                                                     .original_max_positions = 4096})
                 : std::nullopt;
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
  const auto write = [&](const std::string& name, const std::string& text) {
    ASSERT_OK(WriteFileAtomically(folder / name, text));
  };
  const auto read = [&] {
    const auto special = ReadSpecialTokens(folder.path());
    EXPECT_THAT(special.status(), IsOk());
    return special.ok() ? *special : SpecialTokens();
  };
  EXPECT_EQ(read().eos, -1);
  write("tokenizer.json",
        R"({"added_tokens": [{"id": 7, "content": "<s>"}, {"id": 9, "content": "<|eot|>"}]})");
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "<|eot|>"})");
  EXPECT_EQ(read().bos, 7);
  EXPECT_EQ(read().eos, 9);
  EXPECT_EQ(read().stops, std::vector<int64_t>({9}));
  write("generation_config.json", R"({"bos_token_id": 7, "eos_token_id": [8, 9]})");
  EXPECT_EQ(read().eos, 9);  // of those listed, the tokenizer's
  EXPECT_EQ(read().stops, std::vector<int64_t>({8, 9}));
  write("config.json", R"({"bos_token_id": null, "eos_token_id": 5})");
  EXPECT_EQ(read().stops, std::vector<int64_t>({5, 8, 9}));
  write("config.json", R"({"eos_token_id": "</s>"})");
  EXPECT_REFUSED(ReadSpecialTokens(folder.path()).status(), "eos_token_id");
}

}  // namespace
}  // namespace shoal::formats
