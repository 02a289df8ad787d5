// Matrix products by cuBLASLt. Only matmul.h uses it, and computes with our own kernels what this
// refuses.
//
// cuBLASLt is column-major: our row-major C[m, n] = op(A) op(B) is its
//   C^T[n, m] = op(B)^T op(A)^T,
// so B goes first, A second, and strides are leading dimensions.
//
// Shapes. Keeps the plan for each shape (types, transpositions, strides and alignments included) in
// a table that drops the least recently used. Asks the heuristic once per shape, not telling it
// whether C is added to, for algorithms that sum the parts of a split k in fp32 in the workspace:
// the other ways round parts to bf16 in between. All algorithms give the same bits each time on one
// kind of GPU (none uses float atomics). The workspace belongs to this object, so it does not
// depend on other streams.
//
// Tuning. With `tune_after`, once a shape has come that often, runs the heuristic's first few
// algorithms a few times each, as long as some 30 products, and keeps the fastest for the life of
// this object, even after the table drops the shape. Which one that is, and with it the last bits
// of results, may differ between processes. Runs when C is written and not added to, into C itself,
// which takes no extra memory; the choice also serves products that add to C (unit_access.h begins
// every sum with a write). The caller waits for earlier work on the stream; if that takes too long
// the first algorithm stays.
//
// Failure: a shape that cuBLASLt refuses, when planned or run, is logged and counted once; its
// error is returned for as long as the table holds it. If memory was short or the library failed
// internally, which may pass, up to three uses of the shape try again. Threads: one caller at a
// time.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/backend/backend.h"
#include "worker/ops/cuda/matmul/cublas_lt.h"
#include "worker/ops/ops.h"

namespace shoal::worker::cuda {

struct LtOptions {
  Stream* stream = nullptr;  // of a device from MakeCudaDevice
  int gpu = 0;
  void* workspace = nullptr;  // aligned to 256 bytes, the stream's
  int64_t workspace_bytes = 0;
  bool tf32 = false;
  int64_t tune_after = 0;                          // uses of a shape; 0: never
  absl::Duration tune_timeout = absl::Minutes(1);  // for one algorithm, and what is before it
  int64_t table_shapes = 1024;
};

struct LtShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t c_stride = 0;
  int64_t addend_stride = 0;  // 0: there is no addend
  DType input = DType::kF32;
  DType output = DType::kF32;
  bool transpose_a = false;
  bool transpose_b = false;
  // Alignments of the first elements, in bytes.
  int64_t a_alignment = 0;
  int64_t b_alignment = 0;
  int64_t c_alignment = 0;
  int64_t addend_alignment = 0;

  auto operator<=>(const LtShape&) const = default;
};

class LtMatmuls {
 public:
  static absl::StatusOr<std::unique_ptr<LtMatmuls>> Create(const CublasLt& lt,
                                                           const LtOptions& options);
  ~LtMatmuls();

  // Puts the product on the stream. All sizes must be positive.
  absl::Status Run(const MatmulArgs& args);

  int64_t heuristics() const { return heuristics_; }  // asked so far
  int64_t refused() const { return refused_; }        // shapes so far

 private:
  template <typename Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;
  struct Plan {
    absl::Status refused;
    Owned<cublasLtMatmulDesc_t> description{nullptr, nullptr};
    Owned<cublasLtMatrixLayout_t> a{nullptr, nullptr};
    Owned<cublasLtMatrixLayout_t> b{nullptr, nullptr};
    Owned<cublasLtMatrixLayout_t> c{nullptr, nullptr};
    Owned<cublasLtMatrixLayout_t> addend{nullptr, nullptr};  // null: there is none
    // The layout of the addend; without one cuBLASLt does not read it.
    cublasLtMatrixLayout_t added() const { return addend == nullptr ? c.get() : addend.get(); }
    cublasLtMatmulAlgo_t algorithm = {};
  };
  struct Entry {
    Plan plan;
    int tries = 0;
    int64_t uses = 0;
    bool tuned = false;  // or cannot be tuned
    std::list<LtShape>::iterator use;
  };

  LtMatmuls(const CublasLt& lt, const LtOptions& options, cublasLtHandle_t handle);
  Entry& Find(const LtShape& shape);
  absl::Status MakePlan(const LtShape& shape, const MatmulArgs& args, bool tunes, Plan& plan);
  absl::Status Describe(const LtShape& shape, Plan& plan) const;
  absl::StatusOr<Owned<cublasLtMatrixLayout_t>> NewLayout(DType dtype, int64_t rows,
                                                          int64_t columns, int64_t stride) const;
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Offers(const LtShape& shape, const Plan& plan);
  size_t Fastest(const MatmulArgs& args, Plan& plan,
                 const std::vector<cublasLtMatmulAlgo_t>& offers);
  absl::StatusOr<float> Milliseconds(const MatmulArgs& args, const Plan& plan);
  cublasStatus_t Launch(const MatmulArgs& args, const Plan& plan);
  void Refuse(const LtShape& shape, Entry& entry, const absl::Status& why);

  const CublasLt lt_;
  const LtOptions options_;
  const cudaStream_t native_;
  const cublasLtHandle_t handle_;
  std::list<LtShape> by_use_;  // most recent first
  std::map<LtShape, Entry> plans_;
  std::map<LtShape, size_t> tuned_;  // index among the heuristic's offers
  int64_t heuristics_ = 0;
  int64_t refused_ = 0;
};

}  // namespace shoal::worker::cuda
