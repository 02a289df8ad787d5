// cuDNN for tests: the functions that cudnn.h loads, over the fake GPU. One per process;
// ResetFakeCudnn resets it.
#pragma once

#include <cstdint>

#include "worker/ops/cuda/attention/cudnn/cudnn.h"

namespace shoal::worker::cuda {

// What the fake should do from now on, and what it has done.
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
