// cuBLASLt for tests: the functions that cublas_lt.h loads. They check arguments as strictly as the
// library documents and compute on the fake GPU, as a launch on the stream.
#pragma once

#include <cstdint>

#include "worker/ops/cuda/matmul/cublas_lt.h"

namespace shoal::worker::cuda {

// What the fake should do from now on, and what it has done. One per process; tests start with
// Reset.
struct FakeCublasLt {
  cublasStatus_t create_status = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t heuristic_status = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t matmul_status = CUBLAS_STATUS_SUCCESS;
  int offers = 3;          // algorithms that the heuristic offers
  int refused_offers = 1;  // listed before those, with a state that is not success
  int fast_offer = 0;      // the others take 20 ms longer

  int64_t heuristics = 0;
  int64_t products = 0;
  int last_offer = -1;  // run last
  cublasComputeType_t last_compute_type = CUBLAS_COMPUTE_32F;
  int64_t objects = 0;  // alive: handles, descriptions, layouts, preferences
};

FakeCublasLt& Fake();
// Resets the above; returns the fake's functions.
CublasLt ResetFake();

}  // namespace shoal::worker::cuda
