// cuDNN for tests: the functions that cudnn.h finds, over the emulated GPU. One for the process;
// ResetFakeCudnn starts anew.
#pragma once

#include <cstdint>

#include "worker/ops/cuda/attention/cudnn/cudnn.h"

namespace shoal::worker::cuda {

// What the fake does from now on, and has done.
struct FakeCudnn {
  cudnnStatus_t create_status = CUDNN_STATUS_SUCCESS;
  cudnnStatus_t plan_status = CUDNN_STATUS_SUCCESS;
  cudnnStatus_t execute_status = CUDNN_STATUS_SUCCESS;
  int64_t workspace_bytes = 1000;

  int64_t plans = 0;
  int64_t runs = 0;
  int64_t objects = 0;  // alive: handles and descriptors
};
FakeCudnn& Fake();
Cudnn ResetFakeCudnn();

}  // namespace shoal::worker::cuda
