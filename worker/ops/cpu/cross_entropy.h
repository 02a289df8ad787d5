// Softmax and cross entropy of rows of logits. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void SoftmaxCrossEntropy(Context& context, Matrix logits, const int32_t* labels, int64_t count,
                         float scale, Matrix d_logits, double* loss_sum);

}  // namespace shoal::worker::cpu
