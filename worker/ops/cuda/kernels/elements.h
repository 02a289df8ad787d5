// Elements of matrices in device code: several neighbours at once, and which of them a thread
// takes. Only for kernels.
#pragma once

#include "core/gpu/kernel/packed.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/kernels/tiling.h"
#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// Where a thread of a Tiling starts: its first row, the distance to its next, and its chunk.
struct TilePosition {
  int64_t row;
  int64_t row_step;
  int64_t chunk;
};
template <int kRowsPerThread>
SHOAL_DEVICE TilePosition PositionIn(const Tiling& tiling) {
  const int lanes = 1 << tiling.lanes_log2;
  const int rows = kBlockThreads >> tiling.lanes_log2;
  const int row_block = BlockX() / tiling.column_blocks;
  const int column_block = BlockX() - row_block * tiling.column_blocks;
  return {.row = int64_t{row_block} * rows * kRowsPerThread + (ThreadIndex() >> tiling.lanes_log2),
          .row_step = rows,
          .chunk = int64_t{column_block} * lanes + (ThreadIndex() & (lanes - 1))};
}

}  // namespace shoal::worker::cuda
