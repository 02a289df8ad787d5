// The operator table on a GPU: our kernels for all that moves memory, and for products and
// attention what matmul/ and attention/ choose.
//
// Operators put their work on the table's stream and return. Scratch memory of a few MiB is the
// table's own, from the device, and grows to what the largest shapes want.
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
  bool cublas_lt = true;      // matrix products by cuBLASLt where it is found
  bool tf32 = false;          // fp32 products by cuBLASLt on tensor cores, to 10 bits
  bool cudnn = true;          // attention by cuDNN where it is found and serves
  bool deterministic = true;  // the same input gives the same bits; not so, attention's backward
                              // pass may add in any order, which cuDNN's does, and the fastest of
                              // cuBLASLt's algorithms takes over for shapes that come often
  // Uses of a product's shape after which, where bits may differ, it pays to look for cuBLASLt's
  // fastest algorithm for it: that takes as long as a fifth of these. One microbatch has fewer,
  // though it go through 64 layers twice, so the shapes of microbatches that all differ are never
  // measured.
  int64_t tune_after = 160;
  // Told of each matrix product that cuBLASLt refuses and our own kernels make instead: its shape
  // and why. The log has each shape once.
  std::function<void(std::string_view product)> refused_product = {};
  // Told of each backward pass of attention whether cuDNN serves it or our own kernels do.
  std::function<void(bool cudnn)> attention_backward = {};
};

// `device` is one that MakeCudaDevice has made; it outlives the table. Fails where the device does,
// or has no scratch memory left.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device,
                                                 const CudaOpsOptions& options = {});
// The same with a given cuBLASLt in the place of the machine's; null: none.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device, const CudaOpsOptions& options,
                                                 const cuda::CublasLt* lt);

}  // namespace shoal::worker
