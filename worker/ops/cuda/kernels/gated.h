// SwiGLU and GeGLU, forward and backward. Contracts are in worker/ops/ops.h; the caller checks
// shapes, none is empty.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// gate_up[T, 2 I] -> out[T, I]. For each of the T x I, reads 2 and writes 1 element.
cudaError_t SwiGluForward(cudaStream_t stream, const ConstView& gate_up, const View& out);
// d_out[T, I], gate_up[T, 2 I] -> d_gate_up[T, 2 I], and out[T, I] if it has data. Reads 3, writes
// 2 or 3.
cudaError_t SwiGluBackward(cudaStream_t stream, const ConstView& d_out, const ConstView& gate_up,
                           const View& d_gate_up, const View& out);

// Same as above.
cudaError_t GeGluForward(cudaStream_t stream, const ConstView& gate_up, const View& out);
cudaError_t GeGluBackward(cudaStream_t stream, const ConstView& d_out, const ConstView& gate_up,
                          const View& d_gate_up, const View& out);

}  // namespace shoal::worker::cuda
