// Sums over the rows of matrices, ADDED to fp32 vectors: gradients of biases and of norms' weights.
// Contracts are in worker/ops/ops.h; shapes are checked by the caller, none is empty.
//
// In two steps, whose order of additions depends on the shape alone: slabs of rows into `partials`,
// then these into the vector.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// fp32 elements of `partials` for matrices [rows, columns] of this type.
int64_t ColumnSumPartials(Element element, int64_t rows, int64_t columns);

// d_bias[j] ADDED sum of d_y[t, j]. Reads one matrix.
cudaError_t BiasBackward(cudaStream_t stream, const ConstView& d_y, float* d_bias, float* partials);
// d_weight[j] ADDED sum of d_y[t, j] x[t, j] inverse_rms[t]. Reads two matrices.
cudaError_t RmsNormBackwardWeight(cudaStream_t stream, const ConstView& d_y, const ConstView& x,
                                  const float* inverse_rms, float* d_weight, float* partials);

}  // namespace shoal::worker::cuda
