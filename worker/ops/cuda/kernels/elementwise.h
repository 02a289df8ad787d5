// Biases, factors, conversions and zeros. Contracts are in worker/ops/ops.h; the caller checks
// shapes, none is empty.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// y[t, :] += bias, of y's type. Reads and writes one matrix.
cudaError_t AddBias(cudaStream_t stream, const void* bias, const View& y);
// x *= factor. Reads and writes one matrix.
cudaError_t Scale(cudaStream_t stream, float factor, const View& x);
// Converts element by element to the type of `out`. Reads one matrix and writes one.
cudaError_t Convert(cudaStream_t stream, const ConstView& in, const View& out);
// Writes one matrix.
cudaError_t Zero(cudaStream_t stream, const View& out);

}  // namespace shoal::worker::cuda
