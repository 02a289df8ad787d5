// The least that each operator can cost: the bytes that must move through the device's memory (each
// input read once, each output written once, what is added to read and written; logits of rows that
// no block holds twice), and the floating-point operations of matrix products. The larger of the
// two times at the ceilings is its floor: no kernel is much faster.
//
// T rows, everything in bf16 but what ops.h says is fp32.
#pragma once

#include <cstdint>

#include "bench/gpu_check/parts/ceilings.h"
#include "worker/ops/ops.h"

namespace shoal::bench {

// Of a block, on the GPUs that have the most.
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

// C[m, n] = A[m, k] B[k, n], bf16 in, C in bf16 or added to in fp32.
Cost MatmulCost(int64_t m, int64_t n, int64_t k, bool added_in_fp32);
// Of sequences whose lengths' squares add up to `squared_tokens`; half of the square is computed.
// The forward is two products, the backward five.
Cost AttentionForwardCost(const worker::AttentionShape& shape, int64_t rows, double squared_tokens);
Cost AttentionBackwardCost(const worker::AttentionShape& shape, int64_t rows,
                           double squared_tokens);
// Loss and gradients of rows of logits. What of a row does not stay in the shared memory of a
// block, which is told the row's sum only when it has seen all of it, is read again.
bool IsReadTwice(int64_t columns);
Cost CrossEntropyCost(int64_t rows, int64_t columns);
// Of matrices of `elements` each, so many read and written.
Cost ElementwiseCost(int64_t elements, int64_t read, int64_t written);
// The same of an operator with mixed types.
Cost BytesCost(int64_t bytes);

}  // namespace shoal::bench
