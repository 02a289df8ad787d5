#include "worker/ops/cuda/matmul/matmul.h"

#include <limits>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/kernels/views.h"
#include "worker/ops/cuda/matmul/matmul_kernel.h"

namespace shoal::worker::cuda {
namespace {

// The workspace alignment that cuBLASLt wants; more than allocations promise.
constexpr int64_t kWorkspaceAlignment = 256;

// Whether AlignedMatmul takes them: rows can be read 16 bytes at a time. (It reads up to the next
// multiple of 16, for which the stride, also a multiple, leaves room.)
constexpr int64_t kAtOnce = 8;
bool HasAlignedRows(const ConstMatrix& m) {
  return m.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0 &&
         m.stride % kAtOnce == 0;
}
bool IsAligned(const MatmulArgs& args) {
  if (!HasAlignedRows(args.a) || !HasAlignedRows(args.b)) {
    return false;
  }
  return args.transpose_b ? !args.transpose_a && args.a.columns % kAtOnce == 0 : true;
}

void CheckShape(const MatmulArgs& args) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t m = args.c.rows;
  const int64_t n = args.c.columns;
  const int64_t k = args.transpose_a ? args.a.rows : args.a.columns;
  SHOAL_CHECK((args.transpose_a ? args.a.columns : args.a.rows) == m);
  SHOAL_CHECK((args.transpose_b ? args.b.rows : args.b.columns) == n);
  SHOAL_CHECK((args.transpose_b ? args.b.columns : args.b.rows) == k);
  SHOAL_CHECK(m <= kMost && n <= kMost && k <= kMost);
  SHOAL_CHECK(args.a.dtype == args.b.dtype && args.a.dtype != DType::kF16);
  SHOAL_CHECK(args.c.dtype == DType::kF32 || args.c.dtype == args.a.dtype);
  SHOAL_CHECK(!args.accumulate || args.c.dtype == DType::kF32);
  SHOAL_CHECK(args.addend.data == nullptr || (SameShape(args.addend, args.c) &&
                                              args.addend.data != args.c.data && !args.accumulate));
  SHOAL_CHECK(k > 0 || m == 0 || n == 0 || args.accumulate);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Matmuls>> Matmuls::Create(Device& device, Stream& stream,
                                                         const CublasLt* lt,
                                                         const MatmulsOptions& options) {
  const GpuDescription& gpu = GpuOf(device);
  SHOAL_ASSIGN_OR_RETURN(Buffer scratch,
                         device.Allocate(options.scratch_bytes + kWorkspaceAlignment));
  const MatmulGpu limits = {.multiprocessors = gpu.multiprocessors,
                            .shared_bytes = gpu.shared_bytes,
                            .scratch_bytes = options.scratch_bytes};
  std::unique_ptr<Matmuls> matmuls(
      new Matmuls(gpu.index, NativeStream(stream), limits, std::move(scratch), options.refused));
  if (lt == nullptr) {
    return matmuls;
  }
  auto created = LtMatmuls::Create(*lt, {.stream = &stream,
                                         .gpu = gpu.index,
                                         .workspace = matmuls->workspace_,
                                         .workspace_bytes = options.scratch_bytes,
                                         .tf32 = options.tf32,
                                         .tune_after = options.tune_after,
                                         .tune_timeout = options.tune_timeout,
                                         .table_shapes = options.table_shapes});
  if (created.ok()) {
    matmuls->lt_ = *std::move(created);
  } else {
    LogWarning("{}; matrix products run by kernels of our own, more slowly",
               Message(created.status()));
  }
  return matmuls;
}

Matmuls::Matmuls(int gpu, cudaStream_t stream, const MatmulGpu& limits, Buffer scratch,
                 std::function<void(std::string_view)> refused)
    : gpu_(gpu),
      stream_(stream),
      limits_(limits),
      scratch_(std::move(scratch)),
      workspace_(reinterpret_cast<void*>(
          RoundUp(reinterpret_cast<intptr_t>(scratch_.data()), kWorkspaceAlignment))),
      refused_(std::move(refused)) {}

absl::Status Matmuls::Run(const MatmulArgs& args) {
  CheckShape(args);
  if (args.c.rows == 0 || args.c.columns == 0 ||
      (args.transpose_a ? args.a.rows : args.a.columns) == 0) {
    return absl::OkStatus();
  }
  if (lt_ != nullptr) {
    const absl::Status status = lt_->Run(args);
    if (status.ok()) {
      ++by_cublas_lt_;
      return status;
    }
    if (refused_) {
      refused_(Message(status));
    }
  }
  ++by_own_kernels_;
  return RunOwn(args);
}

absl::Status Matmuls::RunOwn(const MatmulArgs& args) {
  MatmulLaunch launch = {.a = ToView(args.a), .b = ToView(args.b)};
  launch.c = ToView(args.c);
  launch.transpose_a = args.transpose_a;
  launch.transpose_b = args.transpose_b;
  launch.added = ToView(args.accumulate ? ConstMatrix(args.c) : args.addend);
  const auto check = [&](cudaError_t error) {
    return error == cudaSuccess ? absl::OkStatus()
                                : ToStatus(error, gpu_,
                                           fmt::format("a matrix product of [{}, {}] over k = {}",
                                                       launch.m(), launch.n(), launch.k()));
  };
  if (args.a.dtype == DType::kF32) {
    return check(PlainMatmul(stream_, launch));
  }
  const bool aligned = IsAligned(args);
  const MatmulPlan plan = PlanMatmul(launch.m(), launch.n(), launch.k(), aligned, limits_);
  launch.tile = plan.tile;
  launch.splits = plan.splits;
  launch.k_per_split = plan.k_per_split;
  launch.partials = static_cast<float*>(workspace_);
  SHOAL_RETURN_IF_ERROR(
      check(aligned ? AlignedMatmul(stream_, launch) : UnalignedMatmul(stream_, launch)));
  return plan.splits > 1 ? check(SumPartials(stream_, launch)) : absl::OkStatus();
}

MatmulCounts Matmuls::counts() const {
  return {.by_cublas_lt = by_cublas_lt_,
          .by_own_kernels = by_own_kernels_,
          .heuristics = lt_ == nullptr ? 0 : lt_->heuristics(),
          .refused_shapes = lt_ == nullptr ? 0 : lt_->refused()};
}

}  // namespace shoal::worker::cuda
