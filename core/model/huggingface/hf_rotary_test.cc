#include "core/model/huggingface/hf_rotary.h"

#include <cmath>

#include "core/base/testing/status.h"
#include "core/model/huggingface/testing/small_configs.h"

namespace shoal::formats {
namespace {

using nlohmann::json;

TEST(ParseModelSpec, ReadsBothSpellingsOfRope) {
  const json llama3 = json::parse(R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})");
  const plan::RopeScaling expected{.factor = 32.0};
  json config = Llama();
  config["rope_scaling"] = llama3;
  config["rope_theta"] = 500000;
  EXPECT_EQ(Parse(config)->attention().rope.scaling, expected);
  EXPECT_EQ(Parse(config)->attention().rope.theta, 500000.0);

  json newer = Llama();
  newer["rope_parameters"] = llama3;
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(*Parse(newer), *Parse(config));
  newer["rope_theta"] = 10000.0;
  newer["rope_scaling"] = json::parse(R"({"rope_type": "default"})");
  EXPECT_EQ(*Parse(newer), *Parse(config)) << "rope_parameters wins";
  config["rope_scaling"] = json::parse(R"({"type": "default"})");
  EXPECT_FALSE(Parse(config)->attention().rope.scaling.has_value());
  config["rope_scaling"] = nullptr;
  EXPECT_FALSE(Parse(config)->attention().rope.scaling.has_value());
}

TEST(ParseModelSpec, ComputesWhatYarnLeavesOut) {
  json config = Llama();
  config["max_position_embeddings"] = 1024;
  const auto read = [&](const char* scaling) {
    config["rope_scaling"] = json::parse(scaling);
    return *Parse(config)->attention().rope.scaling;
  };
  const plan::RopeScaling plain = read(R"({"type": "yarn", "factor": 4.0, "beta_fast": null})");
  EXPECT_EQ(plain, (plan::RopeScaling{.type = plan::RopeType::kYarn,
                                      .factor = 4,
                                      .original_max_positions = 1024,
                                      .attention_factor = 0.1 * std::log(4.0) + 1}));
  EXPECT_DOUBLE_EQ(read(R"({"type": "yarn", "factor": 4.0, "mscale": 2, "mscale_all_dim": 0.5})")
                       .attention_factor,
                   (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  EXPECT_EQ(read(R"({"type": "yarn", "factor": 4.0, "attention_factor": 1.5})").attention_factor,
            1.5);
}

// In the older form what is scaled is scaled in full layers only, in the newer each says its own.
TEST(ParseModelSpec, ReadsRopeByLayerType) {
  json config = Llama();
  config["architectures"] = {"Olmo3ForCausalLM"};
  config["rope_scaling"] = json::parse(R"({"rope_type": "linear", "factor": 2.0})");
  config["rope_theta"] = 1000.0;
  const auto older = Parse(config);
  ASSERT_OK(older.status());
  for (int64_t layer = 0; layer < older->layers; ++layer) {
    const plan::Attention& attention = older->block(layer).attention;
    EXPECT_EQ(attention.window, layer == 3 ? 0 : 4096) << layer;
    EXPECT_EQ(attention.rope.scaling.has_value(), layer == 3) << layer;
    EXPECT_EQ(attention.rope.theta, 1000);
  }
  config.erase("rope_scaling");
  config["rope_theta"] = 5.0;
  config["rope_parameters"] = json::parse(R"({
      "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}})");
  EXPECT_EQ(*Parse(config), *older);
  config["layer_types"] = json(5, "sliding_attention");
  config["rope_parameters"]["sliding_attention"] = {{"rope_type", "linear"}, {"factor", 3.0}};
  const auto sliding = Parse(config);
  ASSERT_OK(sliding.status());
  EXPECT_EQ(sliding->attention().rope.scaling->factor, 3.0);
  for (const plan::ModelSpec& spec : {*older, *sliding}) {
    EXPECT_EQ(*ParseModelSpec(ModelSpecToJson(spec, DType::kF32, {}), "own"), spec);
  }
  const json own = json::parse(ModelSpecToJson(*older, DType::kF32, {}));
  EXPECT_EQ(own["rope_scaling"]["rope_type"], "linear") << "transformers 4 looks there alone";
  config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_REFUSED(Parse(config).status(), "rope_parameters of olmo3 are by kind of layer");
}

json Phi3() {
  json config = Llama();  // heads of 8 dimensions
  config["architectures"] = {"Phi3ForCausalLM"};
  return config;
}

TEST(ParseModelSpec, ReadsThePartOfAHeadThatTurns) {
  json config = Phi3();
  config["partial_rotary_factor"] = 0.75;
  const auto spec = Parse(config);
  ASSERT_OK(spec.status());
  EXPECT_EQ(spec->attention().rotary_dims(), 6);
  EXPECT_EQ(*ParseModelSpec(ModelSpecToJson(*spec, DType::kF32, {}), "own"), *spec);
  config.erase("partial_rotary_factor");
  config["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.75}};
  EXPECT_EQ(*Parse(config), *spec);
  config["rope_parameters"]["partial_rotary_factor"] = 1;
  EXPECT_EQ(Parse(config)->attention().rope.dims, 0);
  config["rope_parameters"]["partial_rotary_factor"] = 0.4;
  EXPECT_REFUSED(Parse(config).status(),
                 "rope_parameters.partial_rotary_factor: 0.4 turns 3 of 8 dimensions; pairs turn");
  config["rope_parameters"]["partial_rotary_factor"] = 1.5;
  EXPECT_REFUSED(Parse(config).status(), "is 1.5, must be above 0 and at most 1");
}

TEST(ParseModelSpec, ReadsLongRope) {
  json config = Phi3();
  config["max_position_embeddings"] = 1024;
  config["original_max_position_embeddings"] = 64;
  config["rope_scaling"] = {
      {"type", "su"}, {"short_factor", {1, 1, 1, 2}}, {"long_factor", {1, 2, 3, 4.5}}};
  const auto spec = Parse(config);
  ASSERT_OK(spec.status());
  const plan::RopeScaling scaling = *spec->attention().rope.scaling;
  EXPECT_EQ(scaling.type, plan::RopeType::kLongRope);
  EXPECT_EQ(scaling.original_max_positions, 64);
  EXPECT_DOUBLE_EQ(scaling.attention_factor, std::sqrt(1 + std::log(16.0) / std::log(64.0)));
  EXPECT_EQ(scaling.long_divisors, std::vector<double>({1, 2, 3, 4.5}));
  EXPECT_EQ(*ParseModelSpec(ModelSpecToJson(*spec, DType::kF32, {}), "own"), *spec);
  EXPECT_EQ(json::parse(ModelSpecToJson(*spec, DType::kF32, {}))["rope_scaling"].size(), 3)
      << "transformers 4 takes no more";
  for (const char* key : {"factor", "attention_factor"}) {
    json own = config;
    own["rope_scaling"][key] = 1.25;
    EXPECT_NE(*Parse(own), *spec) << key;
    EXPECT_EQ(*ParseModelSpec(ModelSpecToJson(*Parse(own), DType::kF32, {}), "own"), *Parse(own))
        << key;
  }
  config.erase("original_max_position_embeddings");
  EXPECT_EQ(Parse(config)->attention().rope.scaling->original_max_positions, 4096);
  EXPECT_EQ(Parse(config)->attention().rope.scaling->attention_factor, 1);

  const auto refuses = [](json wrong, const char* message) {
    EXPECT_REFUSED(Parse(wrong).status(), message);
  };
  json wrong = config;
  wrong["rope_scaling"]["short_factor"] = {1, 2, 3};
  refuses(wrong, "rope_scaling: short_factor has 3 numbers; rotary dimensions 8 need 4");
  wrong["rope_scaling"]["short_factor"] = {1, 2, 3, -1};
  refuses(wrong, "rope_scaling: short_factor has -1, must be positive");
  wrong["rope_scaling"]["short_factor"] = {1, 2, 3, "4"};
  refuses(wrong, "rope_scaling.short_factor has what is no number");
  wrong["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  refuses(wrong, "rope_scaling.type: 'linear' is not supported for phi3; default, longrope are");
  wrong["rope_scaling"] = config["rope_scaling"];
  wrong["architectures"] = {"LlamaForCausalLM"};
  refuses(wrong, "rope_scaling.type: 'su' is not supported; default, linear, llama3, yarn are");
}

}  // namespace
}  // namespace shoal::formats
