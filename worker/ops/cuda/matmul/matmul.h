// Matrix products on a GPU: by cuBLASLt (lt_matmul.h) if it was found, and by our own kernels
// (matmul_kernel.h) if it was not or refuses a shape.
//
// Used by the operators on GPUs, on whose single stream all of it runs, in order. Owns its scratch
// memory, which both kinds use; must not outlive the device and the stream. Threads: one caller at
// a time, with the device current.
//
// Failure: only if our own kernel cannot be launched either, a failure of the GPU or driver; the
// stream reports what fails later. Deterministic: the same input gives the same bits on the same
// kind of GPU, wherever the matrices lie, as long as the same kind of product serves; tuning may
// choose other algorithms in another process.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/backend/backend.h"
#include "worker/ops/cuda/matmul/cublas_lt.h"
#include "worker/ops/cuda/matmul/lt_matmul.h"
#include "worker/ops/cuda/matmul/matmul_plan.h"
#include "worker/ops/ops.h"

namespace shoal::worker::cuda {

struct MatmulsOptions {
  int64_t scratch_bytes = 32 << 20;  // what cuBLASLt wants on the largest GPUs
  bool tf32 = false;                 // fp32 products by cuBLASLt on tensor cores, to 10 bits
  // Uses of a shape after which cuBLASLt's algorithms are measured on it (0: never), and how long
  // one of them, with the work before it, may take.
  int64_t tune_after = 0;
  absl::Duration tune_timeout = absl::Minutes(1);
  int64_t table_shapes = 1024;
  // Called for each product that cuBLASLt refuses.
  std::function<void(std::string_view product)> refused = {};
};

struct MatmulCounts {
  int64_t by_cublas_lt = 0;
  int64_t by_own_kernels = 0;
  int64_t heuristics = 0;      // asked of cuBLASLt: one per shape
  int64_t refused_shapes = 0;  // by cuBLASLt
};

class Matmuls {
 public:
  // `device` and `stream` must come from MakeCudaDevice. `lt`: null if there is no cuBLASLt; one
  // that does not start is logged and ignored. ResourceExhausted without scratch memory.
  static absl::StatusOr<std::unique_ptr<Matmuls>> Create(Device& device, Stream& stream,
                                                         const CublasLt* lt,
                                                         const MatmulsOptions& options = {});

  // Puts the product on the stream. Shapes that do not fit are a programmer's error.
  absl::Status Run(const MatmulArgs& args);

  MatmulCounts counts() const;

 private:
  Matmuls(int gpu, cudaStream_t stream, const MatmulGpu& limits, Buffer scratch,
          std::function<void(std::string_view)> refused);
  absl::Status RunOwn(const MatmulArgs& args);

  const int gpu_;
  const cudaStream_t stream_;
  const MatmulGpu limits_;
  const Buffer scratch_;
  void* const workspace_;
  const std::function<void(std::string_view)> refused_;  // may be empty
  std::unique_ptr<LtMatmuls> lt_;
  int64_t by_cublas_lt_ = 0;
  int64_t by_own_kernels_ = 0;
};

}  // namespace shoal::worker::cuda
