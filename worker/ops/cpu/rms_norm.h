// RMSNorm, forward and backward. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void RmsNormForward(Context& context, ConstMatrix x, ConstVector weight, double epsilon, Matrix y,
                    float* inverse_rms);
void AddRmsNormForward(Context& context, ConstMatrix x, ConstMatrix delta, ConstVector weight,
                       double epsilon, Matrix sum, Matrix y, float* inverse_rms);
void RmsNormBackwardInput(Context& context, ConstMatrix d_y, ConstMatrix x, ConstVector weight,
                          const float* inverse_rms, ConstMatrix residual, Matrix d_x);
void RmsNormBackwardWeight(Context& context, ConstMatrix d_y, ConstMatrix x,
                           const float* inverse_rms, float* d_weight);

}  // namespace shoal::worker::cpu
