#include "worker/ops/cuda/matmul/matmul_plan.h"

#include "gtest/gtest.h"

namespace shoal::worker::cuda {
namespace {

int64_t TileRows(MatmulTile tile) { return tile == MatmulTile::k64x64 ? 64 : 128; }
int64_t TileColumns(MatmulTile tile) {
  return tile == MatmulTile::k64x64 ? 64 : tile == MatmulTile::k128x128 ? 128 : 256;
}
int64_t Blocks(const MatmulPlan& plan, int64_t m, int64_t n) {
  const int64_t rows = TileRows(plan.tile);
  const int64_t columns = TileColumns(plan.tile);
  return (m + rows - 1) / rows * ((n + columns - 1) / columns) * plan.splits;
}

TEST(PlanMatmul, SplitsCoverKWithoutAnEmptyOneAndFitTheScratchMemory) {
  const MatmulGpu gpu;
  for (const int64_t m : {1, 64, 768, 2304, 50257}) {
    for (const int64_t n : {1, 63, 768, 4096}) {
      for (const int64_t k : {1, 64, 65, 1000, 4096, 65536}) {
        for (const bool aligned : {false, true}) {
          const MatmulPlan plan = PlanMatmul(m, n, k, aligned, gpu);
          ASSERT_GE(plan.splits, 1);
          ASSERT_EQ(plan.k_per_split % 64, 0);
          EXPECT_GE(plan.splits * plan.k_per_split, k);
          EXPECT_LT((plan.splits - 1) * plan.k_per_split, k);
          if (plan.splits > 1) {
            EXPECT_LE(plan.splits * ((m * n + 3) / 4 * 16), gpu.scratch_bytes);
          }
          if (!aligned) {
            EXPECT_EQ(plan.tile, MatmulTile::k64x64);
          }
        }
      }
    }
  }
}

TEST(PlanMatmul, LargeProductsTakeTheLargestTilesWhole) {
  for (const int64_t tokens : {4096, 16384, 65536}) {
    const MatmulPlan plan = PlanMatmul(tokens, 11008, 4096, true, {});
    EXPECT_EQ(plan.tile, MatmulTile::k128x256);
    EXPECT_EQ(plan.splits, 1);
  }
}

TEST(PlanMatmul, WeightGradientsOfSmallMatricesFillTheGpu) {
  const MatmulGpu gpu;
  const MatmulPlan plan = PlanMatmul(768, 768, 65536, true, gpu);
  EXPECT_GT(plan.splits, 1);
  EXPECT_GE(Blocks(plan, 768, 768), gpu.multiprocessors * 3 / 4);
  const MatmulPlan tiny = PlanMatmul(64, 128, 65536, true, gpu);
  EXPECT_GE(Blocks(tiny, 64, 128), 32);
}

TEST(PlanMatmul, LittleWorkIsNotSplit) {
  EXPECT_EQ(PlanMatmul(64, 64, 256, true, {}).splits, 1);
  EXPECT_EQ(PlanMatmul(256, 768, 768, true, {}).tile, MatmulTile::k64x64);
}

TEST(PlanMatmul, KeepsToWhatTheGpuHas) {
  EXPECT_EQ(PlanMatmul(8192, 8192, 8192, true, {.shared_bytes = 99 << 10}).tile,
            MatmulTile::k128x128);
  EXPECT_EQ(PlanMatmul(8192, 8192, 8192, true, {.shared_bytes = 48 << 10}).tile,
            MatmulTile::k64x64);
  EXPECT_EQ(PlanMatmul(768, 768, 65536, true, {.scratch_bytes = 0}).splits, 1);
}

}  // namespace
}  // namespace shoal::worker::cuda
