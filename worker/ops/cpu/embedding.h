// Embedding look-up and its gradient. Contracts are in ops.h.
#pragma once

#include "worker/ops/cpu/context.h"

namespace shoal::worker::cpu {

void EmbeddingForward(Context& context, const int32_t* tokens, int64_t token_count,
                      ConstMatrix table, Matrix out);
void EmbeddingBackward(Context& context, const int32_t* tokens, int64_t token_count,
                       ConstMatrix d_out, Matrix d_table);

}  // namespace shoal::worker::cpu
