// GPU memory that attention takes for its backward pass, and keeps for the next, with cuDNN's fused
// engines: gradients that are then joined into one matrix, and the engines' accumulators. Pure
// formulas; a test in worker/ops/cuda/attention/cudnn compares them with what is allocated.
#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/model/model_spec.h"

namespace shoal::plan {

// Whether workers of the job may use cuDNN's backward pass: on a GPU, in bf16, where sums need not
// be exact. Only the workers know whether their GPU and libraries support it, so the plan always
// counts it; a worker that has too little memory for it uses our own, slower kernels.
bool MayFuseAttention(const Job& job);

// For a microbatch of that many tokens: 10 B for each element of its queries (up to 12 where
// several heads share keys, whose gradients are first computed per head), and 8 B for each row of a
// head. Does not include the library's own workspace.
int64_t FusedAttentionBytes(const ModelSpec& spec, int64_t tokens);

}  // namespace shoal::plan
