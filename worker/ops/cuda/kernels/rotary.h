// Rotary position embedding, in place. Contracts are in worker/ops/ops.h; the caller checks shapes,
// none is empty.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

struct RotaryArgs {
  View x;
  int64_t heads = 0;  // rotated ones
  int64_t head_dim = 0;
  int64_t dims = 0;                    // R: those of each head that turn
  const int32_t* positions = nullptr;  // [T]
  const float* cosines = nullptr;      // [*, R/2]
  const float* sines = nullptr;
  bool backward = false;
};

// Reads and writes the rotated heads once; the tables are mostly in caches.
cudaError_t Rotary(cudaStream_t stream, const RotaryArgs& args);

}  // namespace shoal::worker::cuda
