#include "core/plan/memory/activation_bytes.h"

#include "core/plan/memory/memory_plan.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

TEST(PlanChunkBytes, AllChunksTogetherHoldWhatTheWholeModelHolds) {
  const ModelSpec spec = *NamedShape("25m");
  const auto layers = static_cast<int>(spec.layers);
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    for (const int64_t tokens : {1, 64, 1000}) {
      const ChunkBytes whole =
          PlanChunkBytes(spec, compute, {0, layers + 2}, Recompute::kNone, tokens);
      EXPECT_EQ(whole.activations, PlanActivations(spec, compute, tokens).blocks + whole.message);
      for (const Recompute recompute : {Recompute::kNone, Recompute::kLight, Recompute::kFull}) {
        ChunkBytes sum;
        for (const UnitRange& units : {UnitRange{0, 1}, UnitRange{1, 2}, UnitRange{3, layers - 2},
                                       UnitRange{layers + 1, 1}}) {
          const ChunkBytes chunk = PlanChunkBytes(spec, compute, units, recompute, tokens);
          sum.activations += chunk.activations;
          sum.gradients += chunk.gradients;
        }
        const ChunkBytes all = PlanChunkBytes(spec, compute, {0, layers + 2}, recompute, tokens);
        EXPECT_EQ(sum.activations, all.activations);
        EXPECT_EQ(sum.gradients, all.gradients);
      }
    }
  }
}

TEST(PlanChunkBytes, EmbeddingAndHeadAlone) {
  const ModelSpec spec = *NamedShape("6m");
  const int head = static_cast<int>(spec.layers) + 1;
  const int64_t stream = 128 * spec.hidden * 4;
  EXPECT_EQ(PlanChunkBytes(spec, DType::kF32, {0, 1}, Recompute::kLight, 100),
            (ChunkBytes{.activations = 0, .gradients = stream, .message = stream}));
  EXPECT_EQ(PlanChunkBytes(spec, DType::kF32, {head, 1}, Recompute::kFull, 100),
            (ChunkBytes{.activations = stream, .gradients = 0, .message = stream}));
}

TEST(PlanChunkBytes, RecomputeMovesBytesFromActivationsToGradients) {
  const ModelSpec spec = *NamedShape("1.3b");
  const int64_t rows = 256;
  const int64_t c = 2;
  const auto activations = [&](Recompute recompute) {
    return BlockActivationBytes(spec, DType::kBF16, recompute, rows);
  };
  const auto gradients = [&](Recompute recompute) {
    return BlockGradientBytes(spec, DType::kBF16, recompute, rows);
  };
  const int64_t remade = c * rows * (2 * spec.hidden + spec.mlp().intermediate);
  EXPECT_EQ(activations(Recompute::kNone) - activations(Recompute::kLight), remade);
  EXPECT_EQ(gradients(Recompute::kLight) - gradients(Recompute::kNone), remade);
  EXPECT_EQ(activations(Recompute::kFull), c * rows * spec.hidden);
  EXPECT_EQ(gradients(Recompute::kFull) - gradients(Recompute::kLight),
            c * rows * spec.attention().q_size());
}

}  // namespace
}  // namespace shoal::plan
