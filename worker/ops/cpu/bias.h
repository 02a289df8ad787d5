// Bias of a linear layer, and sums of columns. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void AddBias(Context& context, ConstVector bias, Matrix y);
void AddColumnSums(Context& context, ConstMatrix x, float* sums);

}  // namespace shoal::worker::cpu
