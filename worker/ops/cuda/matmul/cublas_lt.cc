#include "worker/ops/cuda/matmul/cublas_lt.h"

#include "core/base/process/dynamic_library.h"
#include "core/base/status.h"

namespace shoal::worker::cuda {

absl::StatusOr<CublasLt> LoadCublasLt() {
  return LoadCublasLt({"libcublasLt.so.13", "libcublasLt.so.12"},
                      LibraryFolders("SHOAL_CUDA_LIBRARIES"));
}

absl::StatusOr<CublasLt> LoadCublasLt(const std::vector<std::string>& names,
                                      const std::vector<std::string>& folders) {
  const absl::StatusOr<void*> library = OpenLibrary(names, folders);
  if (!library.ok()) {
    return NotFound("no cuBLASLt: {}: install it, or name its folder in SHOAL_CUDA_LIBRARIES",
                    Message(library.status()));
  }
  CublasLt lt;
  const bool whole =
      FindFunction(*library, "cublasLtCreate", lt.create) &&
      FindFunction(*library, "cublasLtDestroy", lt.destroy) &&
      FindFunction(*library, "cublasLtGetVersion", lt.version) &&
      FindFunction(*library, "cublasLtGetStatusName", lt.status_name) &&
      FindFunction(*library, "cublasLtMatmul", lt.matmul) &&
      FindFunction(*library, "cublasLtMatmulDescCreate", lt.create_description) &&
      FindFunction(*library, "cublasLtMatmulDescDestroy", lt.destroy_description) &&
      FindFunction(*library, "cublasLtMatmulDescSetAttribute", lt.set_description) &&
      FindFunction(*library, "cublasLtMatrixLayoutCreate", lt.create_layout) &&
      FindFunction(*library, "cublasLtMatrixLayoutDestroy", lt.destroy_layout) &&
      FindFunction(*library, "cublasLtMatmulPreferenceCreate", lt.create_preference) &&
      FindFunction(*library, "cublasLtMatmulPreferenceDestroy", lt.destroy_preference) &&
      FindFunction(*library, "cublasLtMatmulPreferenceSetAttribute", lt.set_preference) &&
      FindFunction(*library, "cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
  if (!whole) {
    return NotFound(
        "no cuBLASLt: what was found lacks functions of it: install CUDA 12 or 13's, "
        "or name its folder in SHOAL_CUDA_LIBRARIES");
  }
  return lt;
}

}  // namespace shoal::worker::cuda
