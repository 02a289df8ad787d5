// Rotary position embedding, in place. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void RotaryForward(Context& context, Matrix x, int64_t rotated_heads, int64_t head_dim,
                   const int32_t* positions, const float* cosines, const float* sines);
void RotaryBackward(Context& context, Matrix d_x, int64_t rotated_heads, int64_t head_dim,
                    const int32_t* positions, const float* cosines, const float* sines);

}  // namespace shoal::worker::cpu
