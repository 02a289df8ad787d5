// Whole rows by index: embedding look-up, gather and scatter. Contracts are in worker/ops/ops.h;
// the caller checks shapes, none is empty. Each reads and writes the copied rows once.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// out[i, :] = in[rows[i], :] for i < count, zero in rows of `out` after that.
cudaError_t GatherRows(cudaStream_t stream, const ConstView& in, const int32_t* rows, int64_t count,
                       const View& out);
// out[rows[i], :] = in[i, :] for i < count.
cudaError_t ScatterRows(cudaStream_t stream, const ConstView& in, const int32_t* rows,
                        int64_t count, const View& out);

}  // namespace shoal::worker::cuda
