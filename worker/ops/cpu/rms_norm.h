// RMSNorm, forward and backward. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void RmsNormForward(Context& context, ConstMatrix x, ConstVector weight, double epsilon, Matrix y,
                    float* inverse_rms);
void RmsNormBackward(Context& context, ConstMatrix d_y, ConstMatrix x, ConstVector weight,
                     const float* inverse_rms, ConstMatrix residual, Matrix d_x, Matrix d_weights);

}  // namespace shoal::worker::cpu
