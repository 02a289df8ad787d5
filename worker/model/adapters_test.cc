// Adapters in the block: gradients, recomputing, and what they leave as it is.
#include "gtest/gtest.h"
#include "worker/model/testing/gradients.h"
#include "worker/model/testing/small_model.h"

namespace shoal::worker {
namespace {

using testing_model::CheckEveryTensor;
using testing_model::EmptyGradientSink;
using testing_model::FullSpec;
using testing_model::MakeModel;
using testing_model::RandomBatch;
using testing_model::RandomWeights;
using testing_model::SmallSpec;

TEST(Adapters, GradientsOfAdaptersAgreeWithFiniteDifferences) {
  for (const plan::ModelSpec& spec :
       {SmallSpec(), FullSpec(), testing_model::PostNormSpec(), testing_model::SandwichSpec()}) {
    CheckEveryTensor(testing_model::WithAdapters(spec));
    CheckEveryTensor(testing_model::WithAdapters(spec, /*all=*/false));
  }
}

// Whatever is recomputed, and whether the gradient is written or added to.
TEST(Adapters, AdaptersHaveTheSameBitsWhateverIsRecomputed) {
  for (const plan::ModelSpec& base :
       {SmallSpec(), FullSpec(), testing_model::PostNormSpec(), testing_model::SandwichSpec()}) {
    const plan::ModelSpec spec = testing_model::WithAdapters(base);
    const auto model = MakeModel(spec, DType::kBF16);
    MemoryUnitSource weights = RandomWeights(model->units(), DType::kBF16, 5);
    const PackedBatch batch = RandomBatch(spec, {40, 7}, 6);
    MemoryGradientSink kept(model->units());
    ASSERT_TRUE(RunMicrobatch(*model, batch, 0.125, weights, kept).ok());
    for (const plan::Recompute recompute : {plan::Recompute::kLight, plan::Recompute::kFull}) {
      EmptyGradientSink remade(model->units());
      ASSERT_TRUE(RunMicrobatch(*model, batch, 0.125, weights, remade, recompute).ok());
      for (const plan::UnitSpec& unit : model->units()) {
        EXPECT_TRUE(std::ranges::equal(remade.gradient(unit.index), kept.gradient(unit.index)))
            << unit.name;
      }
    }
  }
}

// Where B is zero, an adapter changes nothing.
TEST(Adapters, AnAdapterOfZeroLeavesTheLossAsItIs) {
  const plan::ModelSpec spec = testing_model::WithAdapters(FullSpec());
  const auto adapted = MakeModel(spec);
  const auto base = MakeModel(FullSpec());
  MemoryUnitSource weights = RandomWeights(adapted->units(), DType::kF32, 5);
  for (const plan::UnitSpec& unit : adapted->units()) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      if (tensor.role == plan::Role::kLoraB) {
        std::ranges::fill(
            weights.weights(unit.index)
                .subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.count())),
            0.0F);
      }
    }
  }
  MemoryUnitSource alone = RandomWeights(base->units(), DType::kF32, 5);
  const PackedBatch batch = RandomBatch(spec, {40, 7}, 6);
  EXPECT_EQ(EvaluateLoss(*adapted, batch, weights)->loss_sum,
            EvaluateLoss(*base, batch, alone)->loss_sum);
}

}  // namespace
}  // namespace shoal::worker
