#include "core/model/adapters.h"

#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

// Of two layers, with the modules of one of them, as they are targeted.
std::vector<std::string> Targeted(const std::vector<std::string>& targets,
                                  const std::string& family = "llama") {
  ModelSpec spec = *NamedShape("tiny");
  spec.family = family;
  std::vector<std::string> modules;
  const ModelSpec adapted = WithAdapters(spec, targets, /*rank=*/4, /*scale=*/2).value();
  for (const auto& [module, adapter] : AdaptersByModule(adapted)) {
    EXPECT_EQ(adapter.rank, 4);
    EXPECT_EQ(adapter.scale, 2);
    modules.push_back(module.substr(std::string("model.layers.").size()));
  }
  return modules;
}

TEST(WithAdapters, TakesNamesPartsAndPatterns) {
  EXPECT_THAT(Targeted({"all-linear"}), SizeIs(14));
  EXPECT_THAT(Targeted({"attention"}), SizeIs(8));
  EXPECT_THAT(Targeted({"mlp"}), SizeIs(6));
  EXPECT_THAT(Targeted({"q_proj"}), ElementsAre("0.self_attn.q_proj", "1.self_attn.q_proj"));
  EXPECT_THAT(Targeted({"*.1.mlp.[gu]*", "model.layers.0.self_attn.o_proj"}),
              ElementsAre("0.self_attn.o_proj", "1.mlp.gate_proj", "1.mlp.up_proj"));
  EXPECT_THAT(Targeted({"qkv_proj"}, "phi3"),
              ElementsAre("0.self_attn.qkv_proj", "1.self_attn.qkv_proj"));
}

TEST(WithAdapters, RefusesATargetOfNoMatrix) {
  const ModelSpec spec = *NamedShape("tiny");
  EXPECT_REFUSED(WithAdapters(spec, {"mlp", "qproj"}, 4, 1).status(),
                 "'qproj' matches no matrix; did you mean q_proj?");
  for (const std::string target : {"lm_head", "embed_tokens", "layers.0", "input_layernorm"}) {
    EXPECT_REFUSED(WithAdapters(spec, {target}, 4, 1).status(), "matches no matrix");
  }
  EXPECT_REFUSED(WithAdapters(spec, {"q_proj"}, 5000, 1).status(), "has rank 5000");
}

TEST(WithPatterns, TheFirstThatMatchesSaysRankAndScale) {
  const ModelSpec spec =
      WithAdapters(*NamedShape("tiny"), {"q_proj", "mlp"}, /*rank=*/4, /*scale=*/2).value();
  const ModelSpec changed =
      WithPatterns(spec, {{"*.1.mlp.down_proj", 16, 0.25}, {"mlp", 8, 3}}).value();
  for (const auto& [module, adapter] : AdaptersByModule(changed)) {
    const bool is_mlp = module.find("mlp") != std::string::npos;
    const bool is_first = module == "model.layers.1.mlp.down_proj";
    EXPECT_EQ(adapter.rank, is_first ? 16 : is_mlp ? 8 : 4) << module;
    EXPECT_EQ(adapter.scale, is_first ? 0.25 : is_mlp ? 3 : 2) << module;
  }
  EXPECT_THAT(changed.adapters, SizeIs(spec.adapters.size()));
  EXPECT_EQ(WithPatterns(spec, {}).value(), spec);
}

TEST(WithPatterns, RefusesOneThatSaysNothing) {
  const ModelSpec spec = WithAdapters(*NamedShape("tiny"), {"q_proj", "mlp"}, 4, 2).value();
  EXPECT_REFUSED(WithPatterns(spec, {{"mlp", 8, 1}, {"k_proj", 8, 1}}).status(),
                 "no matrix with an adapter (down_proj, gate_proj, q_proj, up_proj) has 'k_proj' "
                 "as the first that matches it");
  EXPECT_REFUSED(WithPatterns(spec, {{"mlp", 8, 1}, {"down_proj", 16, 1}}).status(),
                 "has 'down_proj' as the first");
  ASSERT_OK(WithPatterns(spec, {{"down_proj", 16, 1}, {"mlp", 8, 1}}).status());
}

TEST(WithAdapters, UnitsOfAdaptersFollowTheHead) {
  ModelSpec spec = *NamedShape("tiny");
  spec.layers = 3;
  const std::vector<UnitSpec> before = BuildUnits(spec);
  spec = WithAdapters(spec, {"*.0.mlp.*", "*.2.self_attn.q_proj"}, 4, 1).value();
  ASSERT_OK(Validate(spec));
  const std::vector<UnitSpec> units = BuildUnits(spec);
  ASSERT_THAT(units, SizeIs(before.size() + 2));
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(units[i].name, before[i].name);
    EXPECT_EQ(units[i].count, before[i].count);
  }
  EXPECT_EQ(units[5].name, "block.0.adapter");
  EXPECT_EQ(units[6].name, "block.2.adapter");
  EXPECT_EQ(AdapterUnit(spec, 0), 5);
  EXPECT_EQ(AdapterUnit(spec, 1), -1);
  EXPECT_EQ(AdapterUnit(spec, 2), 6);
  EXPECT_EQ(AdapterRanks(spec), 12);
  const std::string q = "base_model.model.model.layers.2.self_attn.q_proj";
  ASSERT_THAT(units[6].tensors, SizeIs(2));
  EXPECT_EQ(units[6].tensors[0].name, q + ".lora_A.weight");
  EXPECT_THAT(units[6].tensors[0].shape(), ElementsAre(4, spec.hidden));
  EXPECT_EQ(units[6].tensors[1].name, q + ".lora_B.weight");
  EXPECT_THAT(units[6].tensors[1].shape(), ElementsAre(spec.attention().q_size(), 4));
  EXPECT_THAT(FirstLayers(spec, 2).adapters, SizeIs(3));
}

TEST(WithModuleAdapters, IsTheInverseOfAdaptersByModule) {
  const ModelSpec spec =
      WithAdapters(*NamedShape("tiny"), {"k_proj", "*.1.mlp.down_proj"}, 4, 0.5).value();
  ModelSpec base = spec;
  base.adapters.clear();
  EXPECT_EQ(WithModuleAdapters(base, AdaptersByModule(spec)).value(), spec);
  EXPECT_REFUSED(WithModuleAdapters(base, {{"model.layers.2.mlp.up_proj", {4, 1}}}).status(),
                 "'model.layers.2.mlp.up_proj': the model has no such module");
}

}  // namespace
}  // namespace shoal::plan
