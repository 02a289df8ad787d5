// Gathering rows of a matrix and scattering them back. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void GatherRows(Context& context, ConstMatrix in, const int32_t* rows, int64_t count, Matrix out);
void ScatterRows(Context& context, ConstMatrix in, const int32_t* rows, int64_t count, Matrix out);

}  // namespace shoal::worker::cpu
