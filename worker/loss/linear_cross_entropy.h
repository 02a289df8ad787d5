// The head's matrix and the cross entropy in one, chunk by chunk of tokens and only for rows that
// have a target, so that logits are never all in memory. One pass gives the loss, the gradient of
// the rows and that of the matrix.
#pragma once

#include <cstdint>
#include <span>

#include "worker/ops/ops.h"

namespace shoal::worker {

// The rows of X that have a target (distinct, ascending), and their targets.
struct Targets {
  std::span<const int32_t> host_rows;  // [N]
  const int32_t* rows = nullptr;       // [N], device
  const int32_t* labels = nullptr;     // [N], device
  const float* weights = nullptr;      // [N], device: of a target's loss and gradient
  int64_t count() const { return static_cast<int64_t>(host_rows.size()); }
  LabelledRows Labelled(int64_t begin, int64_t targets) const {
    return {labels + begin, weights + begin, targets};
  }
};

// Scratch for chunks of R rows (plan::LossChunk).
struct CrossEntropyBuffers {
  Matrix x;         // [R, H], compute type
  Matrix d_x;       // [R, H], compute type
  Matrix logits;    // [R, V], fp32
  Matrix d_logits;  // [R, V], compute type; for fp32 it may be the same memory as logits
};

// Where to add the gradient of the matrix; null: nowhere.
struct MatrixGradient {
  float* sums = nullptr;  // [V, H]
  bool empty = false;     // still undefined: write to it instead of adding
};

// ADDS the sum of the targets' cross entropies, each times its weight, to *loss.sum (device
// memory), of logits with that softcap (SoftmaxCrossEntropy). If loss.log_probabilities[N] is set,
// overwrites it with those of the labels. If d_x.data is set, overwrites d_x[T, H] = scale * d loss
// / dX (zero in rows without a target). If d_weight.sums is set, ADDS scale * d loss / dW to it, or
// writes it if empty. weight is [V, H].
void LinearCrossEntropy(Ops& ops, ConstMatrix x, ConstMatrix weight, const Targets& targets,
                        float scale, float softcap, const CrossEntropyBuffers& buffers, Matrix d_x,
                        const MatrixGradient& d_weight, const LossOut& loss);

}  // namespace shoal::worker
