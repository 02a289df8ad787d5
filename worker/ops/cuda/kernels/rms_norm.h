// RMSNorm, forward and backward. Contracts are in worker/ops/ops.h; the caller checks shapes, none
// is empty.
//
// Each matrix is read and written once if a row fits the registers of a block (TileRow) and starts
// at a multiple of 16 bytes; otherwise rows are read twice. The backward has one block for each
// partial sum of the weight's gradient, so these cost nothing but their own bytes.
//
// A row may be one of several parts of a longer one, each normed by itself. `rows` and `columns` of
// views are then those of parts, and `stride` lies between longer rows.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

struct RmsNormForwardArgs {
  ConstView x;
  const void* weight = nullptr;  // [H]
  float offset = 0;              // added to it
  float epsilon = 0;
  const void* residual = nullptr;  // null: none
  int64_t residual_stride = 0;
  View y;
  float* inverse_rms = nullptr;  // [rows]
  int64_t parts = 1;             // of a longer row
};
cudaError_t RmsNormForward(cudaStream_t stream, const RmsNormForwardArgs& args);

struct RmsNormBackwardArgs {
  ConstView d_y;
  ConstView x;
  const void* weight = nullptr;        // [H]
  float offset = 0;                    // added to it
  const float* inverse_rms = nullptr;  // [rows]
  const void* residual = nullptr;      // null: none
  int64_t residual_stride = 0;
  View d_x;
  float* d_weights = nullptr;    // [partials, H], of this many rows each
  int64_t rows_per_partial = 0;  // > 0
  int64_t parts = 1;             // of a longer row
};
cudaError_t RmsNormBackward(cudaStream_t stream, const RmsNormBackwardArgs& args);

}  // namespace shoal::worker::cuda
