#include "worker/ops/cuda/matmul/lt_matmul.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {
namespace {

// Tries for a shape refused for a reason that may pass.
constexpr int kTries = 3;
constexpr int kTunedOffers = 8;
constexpr int kTimedRuns = 3;
// Most choices of tuning kept; later shapes are not tuned.
constexpr size_t kMaxTuned = 4096;

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// Claims at most the alignment of allocations, so that the algorithm does not depend on where a
// matrix lies.
int64_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return std::min(static_cast<int64_t>(address & -address), kBufferAlignment);
}

LtShape ShapeOf(const MatmulArgs& args) {
  return {.m = args.c.rows,
          .n = args.c.columns,
          .k = args.transpose_a ? args.a.rows : args.a.columns,
          .a_stride = args.a.stride,
          .b_stride = args.b.stride,
          .c_stride = args.c.stride,
          .addend_stride = args.addend.data == nullptr ? 0 : args.addend.stride,
          .input = args.a.dtype,
          .output = args.c.dtype,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .a_alignment = AlignmentOf(args.a.data),
          .b_alignment = AlignmentOf(args.b.data),
          .c_alignment = AlignmentOf(args.c.data),
          .addend_alignment = AlignmentOf(args.addend.data)};
}

absl::Status Check(const CublasLt& lt, cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) {
    return absl::OkStatus();
  }
  // Clears an error it may have left, or the next launch reports it.
  (void)cudaGetLastError();
  // Lack of memory, or internal trouble of the library or the driver.
  const bool may_pass =
      status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_INTERNAL_ERROR;
  return may_pass ? Unavailable("{}: {}", what, lt.status_name(status))
                  : Internal("{}: {}", what, lt.status_name(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LtMatmuls>> LtMatmuls::Create(const CublasLt& lt,
                                                             const LtOptions& options) {
  SHOAL_CHECK(reinterpret_cast<uintptr_t>(options.workspace) % 256 == 0);
  cublasLtHandle_t handle = nullptr;
  SHOAL_RETURN_IF_ERROR(Check(lt, lt.create(&handle), "starting cuBLASLt"));
  return std::unique_ptr<LtMatmuls>(new LtMatmuls(lt, options, handle));
}

LtMatmuls::LtMatmuls(const CublasLt& lt, const LtOptions& options, cublasLtHandle_t handle)
    : lt_(lt), options_(options), native_(NativeStream(*options.stream)), handle_(handle) {}

LtMatmuls::~LtMatmuls() {
  plans_.clear();
  (void)lt_.destroy(handle_);
}

absl::Status LtMatmuls::Run(const MatmulArgs& args) {
  const LtShape shape = ShapeOf(args);
  Entry& entry = Find(shape);
  const bool may_pass = absl::IsUnavailable(entry.plan.refused) && entry.tries < kTries;
  const bool often = options_.tune_after > 0 && ++entry.uses >= options_.tune_after;
  const bool tunes = often && !entry.tuned && !args.accumulate && entry.plan.refused.ok() &&
                     tuned_.size() < kMaxTuned && !tuned_.contains(shape);
  entry.tuned = entry.tuned || tunes;
  if (entry.tries == 0 || may_pass || tunes) {
    const bool serves = entry.tries > 0 && entry.plan.refused.ok();
    entry.tries += serves ? 0 : 1;
    Plan plan;
    if (const absl::Status planned = MakePlan(shape, args, tunes, plan); planned.ok()) {
      entry.plan = std::move(plan);
    } else if (!serves) {  // otherwise the current plan goes on
      Refuse(shape, entry, planned);
    }
  }
  if (!entry.plan.refused.ok()) {
    return entry.plan.refused;
  }
  const absl::Status status = Check(lt_, Launch(args, entry.plan), "running");
  if (!status.ok()) {
    Refuse(shape, entry, status);
  }
  return entry.plan.refused;
}

LtMatmuls::Entry& LtMatmuls::Find(const LtShape& shape) {
  const auto found = plans_.find(shape);
  if (found != plans_.end()) {
    by_use_.splice(by_use_.begin(), by_use_, found->second.use);
    return found->second;
  }
  if (static_cast<int64_t>(plans_.size()) >= options_.table_shapes) {
    plans_.erase(by_use_.back());
    by_use_.pop_back();
  }
  by_use_.push_front(shape);
  Entry& entry = plans_[shape];
  entry.use = by_use_.begin();
  return entry;
}

absl::Status LtMatmuls::MakePlan(const LtShape& shape, const MatmulArgs& args, bool tunes,
                                 Plan& plan) {
  SHOAL_RETURN_IF_ERROR(Describe(shape, plan));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> offers, Offers(shape, plan));
  size_t choice = 0;
  if (const auto tuned = tuned_.find(shape); tuned != tuned_.end()) {
    choice = std::min(tuned->second, offers.size() - 1);
  } else if (tunes && offers.size() > 1) {
    choice = Fastest(args, plan, offers);
    tuned_[shape] = choice;
  }
  plan.algorithm = offers[choice];
  return absl::OkStatus();
}

absl::Status LtMatmuls::Describe(const LtShape& shape, Plan& plan) const {
  const bool fast = options_.tf32 && shape.input == DType::kF32;
  cublasLtMatmulDesc_t description = nullptr;
  SHOAL_RETURN_IF_ERROR(
      Check(lt_,
            lt_.create_description(
                &description, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "describing the product"));
  plan.description = {description, lt_.destroy_description};
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const int32_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    return Check(lt_, lt_.set_description(description, attribute, &operation, sizeof(operation)),
                 "describing a transposition");
  };
  // Its A is our B: see the header.
  SHOAL_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_b));
  SHOAL_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_a));
  const auto layout = [&](bool transposed, int64_t rows, int64_t columns, int64_t stride) {
    return NewLayout(shape.input, transposed ? columns : rows, transposed ? rows : columns, stride);
  };
  SHOAL_ASSIGN_OR_RETURN(plan.a, layout(shape.transpose_a, shape.m, shape.k, shape.a_stride));
  SHOAL_ASSIGN_OR_RETURN(plan.b, layout(shape.transpose_b, shape.k, shape.n, shape.b_stride));
  SHOAL_ASSIGN_OR_RETURN(plan.c, NewLayout(shape.output, shape.m, shape.n, shape.c_stride));
  if (shape.addend_stride != 0) {
    SHOAL_ASSIGN_OR_RETURN(plan.addend,
                           NewLayout(shape.output, shape.m, shape.n, shape.addend_stride));
  }
  return absl::OkStatus();
}

absl::StatusOr<LtMatmuls::Owned<cublasLtMatrixLayout_t>> LtMatmuls::NewLayout(
    DType dtype, int64_t rows, int64_t columns, int64_t stride) const {
  cublasLtMatrixLayout_t layout = nullptr;
  SHOAL_RETURN_IF_ERROR(
      Check(lt_,
            lt_.create_layout(&layout, TypeOf(dtype), static_cast<uint64_t>(columns),
                              static_cast<uint64_t>(rows), stride),
            "describing a matrix"));
  return Owned<cublasLtMatrixLayout_t>(layout, lt_.destroy_layout);
}

absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> LtMatmuls::Offers(const LtShape& shape,
                                                                    const Plan& plan) {
  cublasLtMatmulPreference_t preference = nullptr;
  SHOAL_RETURN_IF_ERROR(Check(lt_, lt_.create_preference(&preference), "making preferences"));
  const Owned<cublasLtMatmulPreference_t> owned(preference, lt_.destroy_preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return Check(lt_, lt_.set_preference(preference, attribute, &value, sizeof(value)),
                 "setting preferences");
  };
  SHOAL_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                            static_cast<uint64_t>(options_.workspace_bytes)));
  SHOAL_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                            static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  const std::pair<cublasLtMatmulPreferenceAttributes_t, int64_t> alignments[] = {
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b_alignment},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a_alignment},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
       shape.addend_stride == 0 ? shape.c_alignment : shape.addend_alignment},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.c_alignment}};
  for (const auto& [attribute, alignment] : alignments) {
    SHOAL_RETURN_IF_ERROR(set(attribute, static_cast<uint32_t>(alignment)));
  }
  std::array<cublasLtMatmulHeuristicResult_t, kTunedOffers> results = {};
  int count = 0;
  ++heuristics_;
  SHOAL_RETURN_IF_ERROR(
      Check(lt_,
            lt_.heuristic(handle_, plan.description.get(), plan.b.get(), plan.a.get(), plan.added(),
                          plan.c.get(), preference, kTunedOffers, results.data(), &count),
            "choosing an algorithm"));
  std::vector<cublasLtMatmulAlgo_t> offers;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS &&
        results[i].workspaceSize <= static_cast<size_t>(options_.workspace_bytes)) {
      offers.push_back(results[i].algo);
    }
  }
  if (offers.empty()) {
    return Internal("choosing an algorithm: it has none");
  }
  return offers;
}

size_t LtMatmuls::Fastest(const MatmulArgs& args, Plan& plan,
                          const std::vector<cublasLtMatmulAlgo_t>& offers) {
  size_t fastest = 0;
  std::optional<float> least;
  for (size_t i = 0; i < offers.size(); ++i) {
    plan.algorithm = offers[i];
    const absl::StatusOr<float> time = Milliseconds(args, plan);
    if (absl::IsDeadlineExceeded(time.status())) {
      break;  // the stream waits for something, or the GPU hangs: the caller must go on
    }
    if (time.ok() && (!least.has_value() || *time < *least)) {
      least = *time;
      fastest = i;
    }
  }
  return fastest;
}

absl::StatusOr<float> LtMatmuls::Milliseconds(const MatmulArgs& args, const Plan& plan) {
  const auto check = [&](cudaError_t error) {
    return ToStatus(error, options_.gpu, "timing a matrix product");
  };
  using TimedEvent = std::unique_ptr<CUevent_st, cudaError_t (*)(cudaEvent_t)>;
  std::vector<TimedEvent> events;
  // The first run, before the first event, loads the kernel.
  for (int run = 0; run <= kTimedRuns; ++run) {
    SHOAL_RETURN_IF_ERROR(Check(lt_, Launch(args, plan), "timing"));
    cudaEvent_t event = nullptr;
    SHOAL_RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&event, cudaEventDefault)));
    events.emplace_back(event, cudaEventDestroy);
    SHOAL_RETURN_IF_ERROR(check(cudaEventRecord(event, native_)));
  }
  const std::unique_ptr<Event> done = options_.stream->Record();
  if (!done->WaitDone(options_.tune_timeout)) {
    return DeadlineExceeded("timing a matrix product: not done within {}",
                            absl::FormatDuration(options_.tune_timeout));
  }
  SHOAL_RETURN_IF_ERROR(done->Wait());
  float least = 0;
  for (size_t i = 0; i < kTimedRuns; ++i) {
    float time = 0;
    SHOAL_RETURN_IF_ERROR(check(cudaEventElapsedTime(&time, events[i].get(), events[i + 1].get())));
    least = i == 0 ? time : std::min(least, time);
  }
  return least;
}

cublasStatus_t LtMatmuls::Launch(const MatmulArgs& args, const Plan& plan) {
  const float alpha = 1.0f;
  const bool has_addend = args.addend.data != nullptr;
  const float beta = args.accumulate || has_addend ? 1.0f : 0.0f;
  return lt_.matmul(handle_, plan.description.get(), &alpha, args.b.data, plan.b.get(), args.a.data,
                    plan.a.get(), &beta, has_addend ? args.addend.data : args.c.data, plan.added(),
                    args.c.data, plan.c.get(), &plan.algorithm, options_.workspace,
                    static_cast<size_t>(options_.workspace_bytes), native_);
}

void LtMatmuls::Refuse(const LtShape& shape, Entry& entry, const absl::Status& why) {
  entry.plan = {};
  entry.plan.refused = Annotate(
      why, fmt::format("cuBLASLt, C[{}, {}] of {}{} over k = {}{}{}", shape.m, shape.n,
                       Name(shape.input), shape.addend_stride != 0 ? " with an addend" : "",
                       shape.k, shape.transpose_a ? ", A transposed" : "",
                       shape.transpose_b ? ", B transposed" : ""));
  if (entry.tries == 1) {
    ++refused_;
    LogWarning("{}; such products run by kernels of our own, more slowly",
               Message(entry.plan.refused));
  }
}

}  // namespace shoal::worker::cuda
