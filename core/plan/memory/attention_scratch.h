// What attention takes of a GPU's memory for its backward pass, and keeps for the next, where
// cuDNN's fused engines serve: gradients that are then joined to one matrix, and what the engines
// add up in. Pure formulas; worker/ops/cuda/attention/cudnn has a test that holds them against what
// is allocated.
#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/model/model_spec.h"

namespace shoal::plan {

// Whether workers of the job may use cuDNN's backward pass: on a GPU, in bf16, where sums need not
// be exact. Which GPUs and libraries do serve is known where they are alone, so it is planned for
// in any case: where its memory is short, kernels of our own serve, more slowly.
bool MayFuseAttention(const Job& job);

// For a microbatch of that many tokens: 10 B for each element of its queries (up to 12 where
// several heads share keys, whose gradients are of each head first), and 8 B for each row of a
// head. The library's own workspace is not in it.
int64_t FusedAttentionBytes(const ModelSpec& spec, int64_t tokens);

}  // namespace shoal::plan
