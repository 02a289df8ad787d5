// Softmax and cross entropy of rows of logits. Contracts are in worker/ops/ops.h; the caller checks
// shapes, none is empty.
//
// A row that fits a block's shared memory (some 57,000 logits on an H100) gets one block, which
// reads it once. Longer rows, and few rows, are cut into parts with one block each (TileLongRows):
// first maxima and sums of the parts, then the gradient, which combines these and reads the logits
// again, from the second-level cache as far as they fit.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/ops/cuda/kernels/view.h"
#include "worker/ops/labelled_rows.h"

namespace shoal::worker::cuda {

struct CrossEntropyArgs {
  ConstView logits;   // [R, V], fp32; d_logits may be the same memory
  LabelledRows rows;  // count > 0
  float scale = 1;
  float softcap = 0;  // of logits; 0: none
  View d_logits;      // [R, V], or no data: only the loss
  LossOut loss;
  int64_t shared_bytes = 0;  // that a block may have
};

// Returns the bytes of scratch for `count` rows of this many columns.
int64_t CrossEntropyScratch(int64_t count, int64_t columns);

cudaError_t SoftmaxCrossEntropy(cudaStream_t stream, const CrossEntropyArgs& args, void* scratch);

}  // namespace shoal::worker::cuda
