// Sums over a row that a group of warps of one block shares. Only for kernels.
#pragma once

#include "worker/ops/cuda/kernels/elements.h"

namespace shoal::worker::cuda {

// A block has `warps` warps per row: a thread's row of the block, and its place in the group.
struct RowGroup {
  int row;
  int thread;   // of the group's
  int threads;  // of the group
};
SHOAL_DEVICE RowGroup GroupOf(int warps) {
  const int threads = warps * kWarp;
  return {.row = ThreadIndex() / threads, .thread = ThreadIndex() % threads, .threads = threads};
}

// Sums `value` over the group's threads: lanes as in WarpSum, then warps in order. All threads of
// the block must call it; `shared` is used only during the call.
SHOAL_DEVICE float GroupSum(float value, const RowGroup& group, float (&shared)[kBlockWarps]) {
  const float sum = WarpSum(value);
  if (group.threads == kWarp) {
    return sum;
  }
  if (LaneIndex() == 0) {
    shared[WarpIndex()] = sum;
  }
  SyncBlock();
  const int warps = group.threads / kWarp;
  float total = 0;
  for (int i = 0; i < warps; ++i) {
    total += shared[group.row * warps + i];
  }
  return total;
}

}  // namespace shoal::worker::cuda
