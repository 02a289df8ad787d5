// How blocks of threads cover matrices: pure functions of the shape, so that the order of every sum
// is a function of the shape too, and tests can inspect launches without a GPU.
//
// A chunk is what a thread loads at once: 16 bytes if rows and strides allow it, else one element.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/gpu/kernel/blocks.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {

// Elementwise work: a block covers 2^lanes_log2 chunks of each of kBlockThreads >> lanes_log2 rows
// at a time, and each thread takes the same chunk of `rows_per_thread` rows, all loaded before the
// first is used.
struct Tiling {
  int32_t lanes_log2 = 0;
  int32_t column_blocks = 0;
  int64_t row_blocks = 0;
  int64_t blocks() const { return row_blocks * column_blocks; }
};

constexpr Tiling TileMatrix(int64_t rows, int64_t chunks, int rows_per_thread) {
  Tiling tiling;
  while ((1 << tiling.lanes_log2) < std::min<int64_t>(chunks, kBlockThreads)) {
    ++tiling.lanes_log2;
  }
  tiling.column_blocks = static_cast<int32_t>(DivideUp(chunks, int64_t{1} << tiling.lanes_log2));
  tiling.row_blocks = DivideUp(rows, int64_t{kBlockThreads >> tiling.lanes_log2} * rows_per_thread);
  return tiling;
}

// Work on rows that registers hold whole: `warps` warps per row, each lane with `chunks_per_lane`
// chunks (chunk = lane + 32 warps x i). Zero warps: the row is too long for that.
inline constexpr int kMaxChunksPerLane = 4;
struct RowTiling {
  int32_t warps = 0;
  int32_t chunks_per_lane = 0;
  int32_t rows_per_block() const { return kBlockWarps / warps; }
};

constexpr RowTiling TileRow(int64_t chunks) {
  RowTiling tiling{1, 1};
  while (tiling.chunks_per_lane < kMaxChunksPerLane && 32 * tiling.chunks_per_lane < chunks) {
    tiling.chunks_per_lane *= 2;
  }
  while (tiling.warps < kBlockWarps && 32 * tiling.warps * tiling.chunks_per_lane < chunks) {
    tiling.warps *= 2;
  }
  return 32 * tiling.warps * tiling.chunks_per_lane < chunks ? RowTiling{} : tiling;
}

// Sums over columns, in two steps: slabs of rows into partial sums [slabs, columns], then those in
// order. A block takes 32 chunks of columns of one slab.
struct ColumnSumTiling {
  int64_t column_blocks = 0;
  int64_t slabs = 0;
  int64_t rows_per_slab = 0;
};

constexpr ColumnSumTiling TileColumnSum(int64_t rows, int64_t chunks) {
  constexpr int64_t kLeastRows = 4 * kBlockWarps;  // each warp has a few rows in flight
  ColumnSumTiling tiling;
  tiling.column_blocks = DivideUp(chunks, 32);
  // At most as many blocks as run concurrently: a few in a second round would take as long as the
  // first.
  const int64_t wanted = kManyBlocks / 2 / std::max<int64_t>(tiling.column_blocks, 1);
  const int64_t slabs =
      std::clamp<int64_t>(wanted, 1, std::max<int64_t>(DivideUp(rows, kLeastRows), 1));
  tiling.rows_per_slab = std::max<int64_t>(DivideUp(rows, slabs), 1);
  tiling.slabs = DivideUp(rows, tiling.rows_per_slab);
  return tiling;
}

// Rows so long that several blocks share each: `parts` blocks per row, `part_columns` each.
struct LongRowTiling {
  int64_t parts = 0;
  int64_t part_columns = 0;
};

constexpr LongRowTiling TileLongRows(int64_t rows, int64_t columns) {
  constexpr int64_t kUnit = 4 * kBlockThreads;
  constexpr int64_t kLeastColumns = 4 * kUnit;
  const int64_t wanted = DivideUp(kManyBlocks, std::max<int64_t>(rows, 1));
  const int64_t parts = std::clamp<int64_t>(wanted, 1, DivideUp(columns, kLeastColumns));
  LongRowTiling tiling;
  tiling.part_columns = DivideUp(DivideUp(columns, parts), kUnit) * kUnit;
  tiling.parts = DivideUp(columns, tiling.part_columns);
  return tiling;
}

}  // namespace shoal::worker::cuda
