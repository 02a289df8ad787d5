// Matrix products of any size, split over the threads.
#pragma once

#include "worker/ops/cpu/context.h"
#include "worker/ops/ops.h"

namespace shoal::worker::cpu {

// C = op(A) op(B), or ADDED to C: see MatmulArgs.
void Matmul(Context& context, const MatmulArgs& args);

}  // namespace shoal::worker::cpu
