// RMSNorm, forward (of x, or of a sum that it writes too) and the gradient of its input. Contracts
// are in worker/ops/ops.h; shapes are checked by the caller, none is empty. The gradient of the
// weight is a sum over columns: column_sum.h.
//
// Each matrix is read and written once where a row fits the registers of a block (TileRow) and
// starts at a multiple of 16 bytes; elsewhere rows are read twice.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

struct RmsNormForwardArgs {
  ConstView x;
  const void* delta = nullptr;  // null: the norm of x alone, and `sum` is not written
  int64_t delta_stride = 0;
  const void* weight = nullptr;  // [H]
  float epsilon = 0;
  void* sum = nullptr;
  int64_t sum_stride = 0;
  View y;
  float* inverse_rms = nullptr;  // [T]
};
cudaError_t RmsNormForward(cudaStream_t stream, const RmsNormForwardArgs& args);

struct RmsNormBackwardArgs {
  ConstView d_y;
  ConstView x;
  const void* weight = nullptr;        // [H]
  const float* inverse_rms = nullptr;  // [T]
  const void* residual = nullptr;      // null: none
  int64_t residual_stride = 0;
  View d_x;
};
cudaError_t RmsNormBackwardInput(cudaStream_t stream, const RmsNormBackwardArgs& args);

}  // namespace shoal::worker::cuda
