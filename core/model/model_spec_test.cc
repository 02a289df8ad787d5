#include "core/model/model_spec.h"

#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

TEST(BuildUnits, LaysOutEveryTensorAlignedAndInOrder) {
  for (const std::string& name : NamedShapes()) {
    const ModelSpec spec = *NamedShape(name);
    ASSERT_TRUE(Validate(spec).ok()) << name;
    const auto units = BuildUnits(spec);
    ASSERT_EQ(static_cast<int64_t>(units.size()), spec.layers + 2);
    for (const UnitSpec& unit : units) {
      int64_t end = 0;
      for (const TensorSpec& tensor : unit.tensors) {
        EXPECT_EQ(tensor.offset % kTensorAlignment, 0);
        EXPECT_GE(tensor.offset, end);
        EXPECT_LT(tensor.offset - end, kTensorAlignment);
        end = tensor.offset + tensor.count();
      }
      EXPECT_GE(unit.count, end);
    }
  }
}

TEST(ParameterCount, MatchesKnownModels) {
  const ModelSpec stories = {.family = "llama",
                             .vocabulary = 512,
                             .hidden = 64,
                             .layers = 5,
                             .max_positions = 512,
                             .tied_embeddings = true,
                             .kinds = {{.attention = {.heads = 8, .kv_heads = 4, .head_dim = 8},
                                        .mlp = {.intermediate = 172}}}};
  EXPECT_EQ(ParameterCount(stories), 260032);
  EXPECT_NEAR(static_cast<double>(ParameterCount(*NamedShape("7b"))), 7.6e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(ParameterCount(*NamedShape("14b"))), 14.8e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(ParameterCount(*NamedShape("32b"))), 32.8e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(ParameterCount(*NamedShape("25m"))), 25e6, 2e6);
}

TEST(Validate, NamesWhatIsWrong) {
  ModelSpec spec = *NamedShape("tiny");
  spec.kinds[0].attention.kv_heads = 3;
  EXPECT_FALSE(Validate(spec).ok());
  spec = *NamedShape("tiny");
  spec.family = "unheard of";
  EXPECT_FALSE(Validate(spec).ok());
  spec = *NamedShape("tiny");
  spec.kinds.clear();
  EXPECT_FALSE(Validate(spec).ok());
  spec = *NamedShape("tiny");
  spec.kind_of_layer = {0};
  EXPECT_FALSE(Validate(spec).ok()) << "of one layer of two";
  spec.kind_of_layer = {0, 1};
  EXPECT_FALSE(Validate(spec).ok()) << "a kind that is not there";
  spec.kinds.push_back(spec.kinds[0]);
  spec.kinds[1].attention.rope.theta = 500;
  EXPECT_TRUE(Validate(spec).ok());
  spec.kinds[1].attention.rope.theta = -1;
  EXPECT_FALSE(Validate(spec).ok());
  spec.kinds[1] = spec.kinds[0];
  spec.kinds[1].mlp.intermediate *= 2;
  EXPECT_FALSE(Validate(spec).ok()) << "kinds of two sizes";
  spec = *NamedShape("tiny");
  spec.layers = int64_t{1} << 40;
  EXPECT_NE(std::string(Validate(spec).message()).find("num_hidden_layers"), std::string::npos);
}

}  // namespace
}  // namespace shoal::plan
