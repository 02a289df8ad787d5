// Causal attention over packed sequences. Contracts are in ops.h.
//
// Blocked: a block of queries of all the heads that share a kv head is multiplied with blocks of
// keys, so each thread needs a few blocks of memory whatever the length. Rows of one kv head are
// copied into dense blocks, zero beyond the sequence, which keeps the shapes of products few
// (compiled kernels) and makes it impossible to read past a sequence's end.
#pragma once

#include <span>

#include "worker/ops/cpu/context.h"
#include "worker/ops/ops.h"

namespace shoal::worker::cpu {

void AttentionForward(Context& context, ConstMatrix qkv, const AttentionShape& shape,
                      std::span<const int32_t> cu_seqlens, Matrix out, float* log_sum_exp);
void AttentionBackward(Context& context, ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                       const float* log_sum_exp, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, Matrix d_qkv);
void AttentionDecode(Context& context, ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                     const AttentionShape& shape, Matrix out);

}  // namespace shoal::worker::cpu
