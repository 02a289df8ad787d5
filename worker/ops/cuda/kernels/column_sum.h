// Sums over the rows of matrices, ADDED to fp32 vectors: gradients of biases and of norms' weights.
// Contracts are in worker/ops/ops.h; the caller checks shapes, none is empty.
//
// In two steps, whose order of additions depends only on the shape: slabs of rows into `partials`,
// then these into the vector. A dense fp32 matrix of a few hundred rows takes only the second step.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// Returns the fp32 elements of `partials` for matrices [rows, columns] of this type.
int64_t ColumnSumPartials(Element element, int64_t rows, int64_t columns);

// sums[j] ADDED sum of x[t, j]. Reads the matrix once.
cudaError_t AddColumnSums(cudaStream_t stream, const ConstView& x, float* sums, float* partials);

}  // namespace shoal::worker::cuda
