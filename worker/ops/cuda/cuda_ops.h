// The operator table on a GPU: our kernels for everything that moves memory, and for products and
// attention what matmul/ and attention/ choose.
//
// Operators put their work on the table's stream and return. The table owns a few MiB of scratch
// memory on the device, which grows as shapes need.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/ops/ops.h"

namespace shoal::worker {

namespace cuda {
struct CublasLt;
}  // namespace cuda

struct CudaOpsOptions {
  bool cublas_lt = true;  // matrix products by cuBLASLt if it is found
  bool tf32 = false;      // fp32 products by cuBLASLt on tensor cores, to 10 bits
  bool cudnn = true;      // attention by cuDNN if it is found and serves
  // The same input gives the same bits. If false, attention's backward pass may add in any order,
  // as cuDNN's does, and cuBLASLt's fastest algorithm takes over for frequent shapes.
  bool deterministic = true;
  // Uses of a product's shape after which, if bits may differ, cuBLASLt's fastest algorithm for it
  // is measured, which takes as long as a fifth of these uses. One microbatch has fewer, even with
  // 64 layers twice, so shapes that occur in one microbatch only are never measured.
  int64_t tune_after = 160;
  // Called with each matrix product that cuBLASLt refuses and our own kernels make instead: its
  // shape and why. The log has each shape once.
  std::function<void(std::string_view product)> refused_product = {};
  // Called for each backward pass of attention with whether cuDNN serves it or our own kernels do.
  std::function<void(bool cudnn)> attention_backward = {};
};

// `device` must come from MakeCudaDevice and outlive the table. Fails if the device fails or has no
// scratch memory left.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device,
                                                 const CudaOpsOptions& options = {});
// Same as above with a given cuBLASLt instead of the machine's; null: none.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device, const CudaOpsOptions& options,
                                                 const cuda::CublasLt* lt);

}  // namespace shoal::worker
