// SwiGLU, forward and backward. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void SwiGluForward(Context& context, ConstMatrix gate_up, Matrix out);
void SwiGluBackward(Context& context, ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                    Matrix out);

}  // namespace shoal::worker::cpu
