// The least that each operator can cost: bytes through device memory (each input read once, each
// output written once, destinations of sums read and written, logits of rows too long for a block
// read twice), and floating-point operations of matrix products. Its floor is the larger of the two
// times at the ceilings: no kernel is much faster.
//
// T rows; bf16 except what ops.h says is fp32.
#pragma once

#include <cstdint>

#include "bench/gpu_check/parts/ceilings.h"
#include "worker/ops/ops.h"

namespace shoal::bench {

// Shared memory of a block, on the GPUs that have the most.
inline constexpr int64_t kMostSharedBytes = 227 << 10;

struct Cost {
  double bytes = 0;
  double flops = 0;  // on tensor cores
};

struct Floor {
  double seconds = 0;
  bool memory_bound = false;
};
Floor FloorOf(const Cost& cost, const Ceilings& ceilings);

// C[m, n] = A[m, k] B[k, n]; inputs in bf16, C in bf16 or added to in fp32.
Cost MatmulCost(int64_t m, int64_t n, int64_t k, bool added_in_fp32);
// For sequences whose squared lengths sum to `squared_tokens`, half of which is computed: two
// products forward, five backward.
Cost AttentionForwardCost(const worker::AttentionShape& shape, int64_t rows, double squared_tokens);
Cost AttentionBackwardCost(const worker::AttentionShape& shape, int64_t rows,
                           double squared_tokens);
// Loss and gradients of rows of logits. A block knows the row's sum only at its end, so it reads
// again what its shared memory does not hold.
bool IsReadTwice(int64_t columns);
Cost CrossEntropyCost(int64_t rows, int64_t columns);
// For matrices of `elements` each, of which `read` are read and `written` written.
Cost ElementwiseCost(int64_t elements, int64_t read, int64_t written);
// Same as above for mixed types.
Cost BytesCost(int64_t bytes);

}  // namespace shoal::bench
