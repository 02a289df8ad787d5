// The gradient of the embedding. Its contract is in worker/ops/ops.h; the caller checks shapes,
// none is empty. (The look-up itself is GatherRows, then Scale.)
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// Returns the bytes of scratch for `count` tokens.
int64_t EmbeddingBackwardScratch(int64_t count);

// d_table[tokens[i], :] ADDED scale * d_out[i, :], in order of i. Reads the first `count` rows of
// d_out, and reads and writes the rows of d_table that occur. `scratch` must be aligned to 16.
cudaError_t EmbeddingBackward(cudaStream_t stream, const int32_t* tokens, int64_t count,
                              const ConstView& d_out, float scale, const View& d_table,
                              void* scratch);

}  // namespace shoal::worker::cuda
