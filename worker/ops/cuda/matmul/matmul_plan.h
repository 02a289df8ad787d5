// How our own kernels cut a product into blocks: a pure function of the shape and the GPU.
#pragma once

#include <cstdint>

#include "worker/ops/cuda/matmul/matmul_kernel.h"

namespace shoal::worker::cuda {

struct MatmulGpu {
  int64_t multiprocessors = 132;
  int64_t shared_bytes = 227 << 10;  // the most of a block
  int64_t scratch_bytes = 32 << 20;  // for partial sums
};

struct MatmulPlan {
  MatmulTile tile = MatmulTile::k64x64;
  int splits = 1;           // of k
  int64_t k_per_split = 0;  // a multiple of 64; no split is empty
};

// For C[m, n] summed over k, all positive. Unaligned operands have only the smallest tile.
MatmulPlan PlanMatmul(int64_t m, int64_t n, int64_t k, bool aligned, const MatmulGpu& gpu);

}  // namespace shoal::worker::cuda
