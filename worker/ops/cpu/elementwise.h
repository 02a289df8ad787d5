// Conversions and zeroes. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void Convert(Context& context, ConstMatrix in, Matrix out);
void Zero(Context& context, Matrix out);

}  // namespace shoal::worker::cpu
