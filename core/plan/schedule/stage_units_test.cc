#include "core/plan/schedule/stage_units.h"

#include "core/model/adapters.h"
#include "core/plan/memory/memory_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

ModelSpec FourLayers(bool tied) {
  ModelSpec spec = *NamedShape("tiny");
  spec.layers = 4;
  spec.tied_embeddings = tied;
  return spec;
}

TEST(StageUseOrder, GetsAChunksUnitsInItsForwardAndItsBackwardForTheInput) {
  const ModelSpec spec = FourLayers(/*tied=*/true);
  const std::vector<UnitRange> chunks = {{0, 2}, {3, 3}};  // embedding, block; two blocks, head
  const StageActions actions = {
      {Operation::kReceiveActivation, 1, 0}, {Operation::kForward, 0, 0},
      {Operation::kForward, 1, 0},           {Operation::kOffload, 0, 0},
      {Operation::kBackwardInput, 1, 0},     {Operation::kForward, 0, 1},
      {Operation::kBackwardWeights, 1, 0},   {Operation::kSendGradient, 1, 0},
      {Operation::kBackward, 0, 0}};
  EXPECT_THAT(StageUseOrder(spec, actions, chunks), ElementsAre(0, 1, 3, 4, 5, 0, 4, 3, 0, 1, 1));
  EXPECT_THAT(StageUseOrder(FourLayers(/*tied=*/false), actions, chunks),
              ElementsAre(0, 1, 3, 4, 5, 4, 3, 0, 1, 1));
}

TEST(StageUseOrder, OfAWholeModelIsUseOrder) {
  for (const bool tied : {true, false}) {
    const ModelSpec spec = FourLayers(tied);
    const StageActions actions = {{Operation::kForward, 0, 0}, {Operation::kBackward, 0, 0}};
    const UnitRange all{0, 6};
    EXPECT_EQ(StageUseOrder(spec, actions, {&all, 1}), UseOrder(spec));
  }
}

// Those of a block's adapters follow it; they get a contribution as it does.
TEST(StageUseOrder, AdaptersAreUsedWithTheirBlock) {
  const ModelSpec spec =
      *WithAdapters(FourLayers(/*tied=*/false), {"*.0.mlp.*", "*.3.mlp.*"}, /*rank=*/4, 1);
  EXPECT_THAT(ForwardUses(spec, {0, 6}), ElementsAre(0, 1, 6, 2, 3, 4, 7));
  EXPECT_THAT(BackwardUses(spec, {0, 6}), ElementsAre(5, 4, 7, 3, 2, 1, 6));
  const std::vector<UnitRange> chunks = {{0, 3}, {4, 2}};
  EXPECT_THAT(StageContributions(spec, chunks), ElementsAre(1, 1, 1, 0, 1, 1, 1, 1));
  const UnitRange middle{2, 2};
  EXPECT_THAT(StageContributions(spec, {&middle, 1}), ElementsAre(0, 0, 1, 1, 0, 0, 0, 0));
}

TEST(StageUseOrder, EvaluatingGetsTheHeadAfterTheForward) {
  const std::vector<UnitRange> chunks = {{0, 2}, {3, 3}};
  const StageActions actions = {{Operation::kForward, 0, 0},
                                {Operation::kRelease, 0, 0},
                                {Operation::kForward, 1, 0},
                                {Operation::kRelease, 1, 0}};
  EXPECT_THAT(StageUseOrder(FourLayers(/*tied=*/true), actions, chunks, /*evaluates=*/true),
              ElementsAre(0, 1, 3, 4, 5, 0));
  EXPECT_THAT(StageUseOrder(FourLayers(/*tied=*/false), actions, chunks, /*evaluates=*/true),
              ElementsAre(0, 1, 3, 4, 5));
}

TEST(StageUseOrder, EmbeddingAndHeadAlone) {
  const ModelSpec spec = FourLayers(/*tied=*/true);
  EXPECT_THAT(ForwardUses(spec, {0, 1}), ElementsAre(0));
  EXPECT_THAT(BackwardUses(spec, {0, 1}), IsEmpty());
  EXPECT_THAT(ForwardUses(spec, {5, 1}), IsEmpty());
  EXPECT_THAT(BackwardUses(spec, {5, 1}), ElementsAre(5, 0));
}

TEST(StageContributions, TiedMatrixGetsOneFromEitherEnd) {
  const std::vector<UnitRange> first = {{0, 2}, {2, 1}};
  const std::vector<UnitRange> last = {{4, 2}};
  const std::vector<UnitRange> both = {{0, 1}, {5, 1}};
  EXPECT_THAT(StageContributions(FourLayers(true), first), ElementsAre(1, 1, 1, 0, 0, 0));
  EXPECT_THAT(StageContributions(FourLayers(true), last), ElementsAre(1, 0, 0, 0, 1, 1));
  EXPECT_THAT(StageContributions(FourLayers(true), both), ElementsAre(2, 0, 0, 0, 0, 1));
  EXPECT_THAT(StageContributions(FourLayers(false), last), ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_THAT(StageContributions(FourLayers(false), both), ElementsAre(1, 0, 0, 0, 0, 1));
}

}  // namespace
}  // namespace shoal::plan
