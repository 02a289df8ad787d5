// Bias of a linear layer. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void AddBias(Context& context, ConstVector bias, Matrix y);
void BiasBackward(Context& context, ConstMatrix d_y, float* d_bias);

}  // namespace shoal::worker::cpu
