// The functions of cuBLASLt that matrix products need, loaded at run time: nothing links against
// it, and without it our own kernels serve.
#pragma once

#include <cublasLt.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal::worker::cuda {

// Names and types are the library's own.
struct CublasLt {
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtGetVersion) version = nullptr;
  decltype(&::cublasLtGetStatusName) status_name = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
  decltype(&::cublasLtMatmulDescCreate) create_description = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) destroy_description = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) set_description = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
};

// Loads libcublasLt.so.13 or .12, which stays loaded: from where the loader finds it, from the
// folders of the environment variable SHOAL_CUDA_LIBRARIES, or from ../lib next to the program.
// NotFound if there is none.
absl::StatusOr<CublasLt> LoadCublasLt();
absl::StatusOr<CublasLt> LoadCublasLt(const std::vector<std::string>& names,
                                      const std::vector<std::string>& folders);

}  // namespace shoal::worker::cuda
