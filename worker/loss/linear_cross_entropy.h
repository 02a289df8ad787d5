// The head's matrix and the cross entropy in one: chunk by chunk of tokens, and of the rows that
// have a target alone, so that logits are never all in memory. One pass gives the loss, the
// gradient of the rows and that of the matrix.
#pragma once

#include <cstdint>
#include <span>

#include "worker/ops/ops.h"

namespace shoal::worker {

// Which rows of X have a target, and which; distinct rows in ascending order.
struct Targets {
  std::span<const int32_t> host_rows;  // [N]
  const int32_t* rows = nullptr;       // [N], device
  const int32_t* labels = nullptr;     // [N], device
  int64_t count() const { return static_cast<int64_t>(host_rows.size()); }
};

// Scratch for chunks of R rows (plan::LossChunk).
struct CrossEntropyBuffers {
  Matrix x;         // [R, H], compute type
  Matrix d_x;       // [R, H], compute type
  Matrix logits;    // [R, V], fp32
  Matrix d_logits;  // [R, V], compute type; for fp32 it may be the same memory as logits
};

// Where the gradient of the matrix goes; null: nowhere.
struct MatrixGradient {
  float* sums = nullptr;  // [V, H]
  bool empty = false;     // undefined yet: written, not added to
};

// ADDS the sum of the targets' cross entropies to *loss_sum (device memory). With d_x.data set,
// also d_x[T, H] = scale * d loss / dX (overwritten; zero in rows without a target), and, with
// d_weight.sums set, scale * d loss / dW is ADDED to it, or written where it is empty. weight is
// [V, H].
void LinearCrossEntropy(Ops& ops, ConstMatrix x, ConstMatrix weight, const Targets& targets,
                        float scale, const CrossEntropyBuffers& buffers, Matrix d_x,
                        const MatrixGradient& d_weight, double* loss_sum);

}  // namespace shoal::worker
