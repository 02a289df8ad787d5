// Launch configurations: every element is covered once, nothing is empty, and the shapes that
// matter fill a large GPU.
#include "worker/ops/cuda/kernels/tiling.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "worker/ops/cuda/kernels/column_sum.h"
#include "worker/ops/cuda/kernels/cross_entropy.h"

namespace shoal::worker::cuda {
namespace {

constexpr int64_t kSizes[] = {1, 2, 7, 31, 32, 33, 96, 255, 256, 257, 704, 1000, 4096, 65536};

TEST(TileMatrix, CoversTheMatrixWithoutAnEmptyBlock) {
  for (const int64_t rows : kSizes) {
    for (const int64_t chunks : kSizes) {
      for (const int rows_per_thread : {1, 2, 4}) {
        const Tiling tiling = TileMatrix(rows, chunks, rows_per_thread);
        const int64_t lanes = int64_t{1} << tiling.lanes_log2;
        ASSERT_LE(lanes, kBlockThreads);
        const int64_t rows_per_block = kBlockThreads / lanes * rows_per_thread;
        EXPECT_GE(tiling.column_blocks * lanes, chunks);
        EXPECT_LT((tiling.column_blocks - 1) * lanes, chunks);
        EXPECT_GE(tiling.row_blocks * rows_per_block, rows);
        EXPECT_LT((tiling.row_blocks - 1) * rows_per_block, rows);
        EXPECT_EQ(tiling.blocks(), tiling.row_blocks * tiling.column_blocks);
      }
    }
  }
}

TEST(TileMatrix, NeverIdlesMoreThanHalfOfTheLanes) {
  for (const int64_t chunks : kSizes) {
    const Tiling tiling = TileMatrix(1, chunks, 1);
    EXPECT_LT((int64_t{tiling.column_blocks} << tiling.lanes_log2), 2 * chunks + 1) << chunks;
  }
}

TEST(TileRow, HoldsRowsUpToTheRegistersOfABlock) {
  for (int64_t chunks = 1; chunks <= 32 * kBlockWarps * kMaxChunksPerLane; ++chunks) {
    const RowTiling tiling = TileRow(chunks);
    ASSERT_GT(tiling.warps, 0) << chunks;
    ASSERT_GE(32 * tiling.warps * tiling.chunks_per_lane, chunks);
    ASSERT_EQ(kBlockWarps % tiling.warps, 0);
    // The instances that kernels have.
    ASSERT_TRUE(tiling.chunks_per_lane == 1 || tiling.chunks_per_lane == 2 ||
                tiling.chunks_per_lane == kMaxChunksPerLane);
    // Lanes before warps: sums within a warp need no barrier.
    ASSERT_TRUE(tiling.warps == 1 || tiling.chunks_per_lane == kMaxChunksPerLane);
  }
  EXPECT_EQ(TileRow(32 * kBlockWarps * kMaxChunksPerLane + 1).warps, 0);
}

TEST(TileColumnSum, SlabsCoverTheRows) {
  for (const int64_t rows : kSizes) {
    for (const int64_t chunks : kSizes) {
      const ColumnSumTiling tiling = TileColumnSum(rows, chunks);
      ASSERT_GT(tiling.slabs, 0);
      EXPECT_GE(tiling.slabs * tiling.rows_per_slab, rows);
      EXPECT_LT((tiling.slabs - 1) * tiling.rows_per_slab, rows);
      EXPECT_GE(tiling.column_blocks * 32, chunks);
      EXPECT_LE(tiling.slabs, 65535);  // a grid's second dimension
    }
  }
}

// Rows that cannot be read 16 bytes at a time must not need more partial sums than were counted.
TEST(ColumnSumPartials, AreEnoughForNarrowChunksToo) {
  for (const int64_t rows : kSizes) {
    for (const int64_t columns : kSizes) {
      for (const Element element : {Element::kF32, Element::kBf16}) {
        EXPECT_GE(ColumnSumPartials(element, rows, columns),
                  TileColumnSum(rows, columns).slabs * columns);
      }
    }
  }
}

TEST(TileLongRows, PartsCoverTheRow) {
  for (const int64_t rows : kSizes) {
    for (const int64_t columns : {1, 2, 1023, 1024, 1025, 50257, 128256, 262144}) {
      const LongRowTiling tiling = TileLongRows(rows, columns);
      EXPECT_GE(tiling.parts * tiling.part_columns, columns);
      EXPECT_LT((tiling.parts - 1) * tiling.part_columns, columns);
      // Parts start where 16 bytes may be read.
      EXPECT_EQ(tiling.part_columns % 4, 0);
      EXPECT_GE(CrossEntropyScratch(rows, columns), rows * (8 * tiling.parts + 4));
    }
  }
}

TEST(Launches, FillALargeGpuFromOrdinaryShapesOn) {
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kTokens = 4096;
  constexpr int64_t kHiddenChunks = 2048 / 8;
  EXPECT_GE(TileMatrix(kTokens, kHiddenChunks, 4).blocks(), 4 * kMultiprocessors);
  EXPECT_GE(DivideUp(kTokens, TileRow(kHiddenChunks).rows_per_block()), 4 * kMultiprocessors);
  const ColumnSumTiling sums = TileColumnSum(kTokens, kHiddenChunks);
  EXPECT_GE(sums.column_blocks * sums.slabs, 3 * kMultiprocessors);
  for (const int64_t vocabulary : {32000, 50257, 128256}) {
    for (const int64_t rows : {64, 256, 512}) {
      EXPECT_GE(rows * TileLongRows(rows, vocabulary).parts, 3 * kMultiprocessors);
    }
  }
}

}  // namespace
}  // namespace shoal::worker::cuda
