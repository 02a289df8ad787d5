#include "worker/ops/cuda/attention/cudnn/cudnn_attention.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cuda/attention/cudnn/layout.h"

namespace shoal::worker::cuda {
namespace {

using Id = AttentionTensor::Id;

constexpr int64_t kFewestTokens = 128;   // per plan, at least: a tile of the engines
constexpr int64_t kWorkspaceUnit = 256;  // alignment of workspaces
constexpr int64_t kSlackRows = 128;      // after scratch tensors: engines go tile by tile

int64_t Longest(std::span<const int32_t> cu_seqlens) {
  int32_t longest = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    longest = std::max(longest, cu_seqlens[s + 1] - cu_seqlens[s]);
  }
  return longest;
}

int64_t PowerOfTwo(int64_t at_least) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(at_least)));
}

AttentionBounds BoundsOf(const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                         int64_t qkv_stride, int64_t out_stride, int64_t d_out_stride) {
  return {.sequences = PowerOfTwo(static_cast<int64_t>(cu_seqlens.size()) - 1),
          .longest = PowerOfTwo(std::max(Longest(cu_seqlens), kFewestTokens)),
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .qkv_stride = qkv_stride,
          .out_stride = out_stride,
          .d_out_stride = d_out_stride};
}

TokenWidths WidthsOf(const AttentionBounds& bounds) {
  return {bounds.qkv_stride,
          bounds.out_stride,
          bounds.d_out_stride,
          bounds.heads * bounds.head_dim,
          bounds.kv_heads * bounds.head_dim,
          bounds.heads};
}

bool OffsetsFit(const AttentionBounds& bounds, std::span<const int32_t> cu_seqlens) {
  const TokenWidths widths = WidthsOf(bounds);
  return cu_seqlens.back() * *std::ranges::max_element(widths) <=
         std::numeric_limits<int32_t>::max();
}

// Pieces of one buffer, each at a multiple of 256 bytes. Built twice: to know the buffer's size,
// and to place the pieces.
class Pieces {
 public:
  explicit Pieces(std::byte* memory = nullptr) : memory_(memory) {}
  template <typename T = std::byte>
  T* Take(int64_t count) {
    std::byte* const piece = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += RoundUp(count * static_cast<int64_t>(sizeof(T)), kWorkspaceUnit);
    return reinterpret_cast<T*>(piece);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

struct ForwardScratch {
  ForwardScratch(Pieces pieces, const AttentionBounds& bounds, int64_t used, int64_t workspace)
      : workspace(pieces.Take(workspace)),
        log_sum_exp(pieces.Take<float>((used + kSlackRows) * bounds.heads)),
        bytes(pieces.bytes()) {}

  std::byte* workspace;
  float* log_sum_exp;
  int64_t bytes;
};

struct BackwardScratch {
  BackwardScratch(Pieces pieces, const AttentionBounds& bounds, int64_t used, int64_t workspace)
      : workspace(pieces.Take(workspace)) {
    const int64_t rows = used + kSlackRows;
    const int64_t width = rows * bounds.heads * bounds.head_dim;
    const int64_t kv_width = rows * bounds.kv_heads * bounds.head_dim;
    log_sum_exp = pieces.Take<float>(rows * bounds.heads);
    delta = pieces.Take<float>(rows * bounds.heads);
    d_queries_sum = pieces.Take<float>(width);
    d_queries = pieces.Take<uint16_t>(width);
    d_keys = pieces.Take<uint16_t>(kv_width);
    d_values = pieces.Take<uint16_t>(kv_width);
    if (bounds.heads != bounds.kv_heads) {
      d_keys_of_heads = pieces.Take<uint16_t>(width);
      d_values_of_heads = pieces.Take<uint16_t>(width);
    }
    bytes = pieces.bytes();
  }

  std::byte* workspace;
  float* log_sum_exp;
  float* delta;
  float* d_queries_sum;
  uint16_t* d_queries;
  uint16_t* d_keys;
  uint16_t* d_values;
  uint16_t* d_keys_of_heads = nullptr;
  uint16_t* d_values_of_heads = nullptr;
  int64_t bytes = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FusedAttention>> MakeCudnnAttention(Device& device, Stream& stream) {
  SHOAL_ASSIGN_OR_RETURN(const Cudnn cudnn, LoadCudnn());
  return CudnnAttention::Create(cudnn, device, stream);
}

// Tensors by id for a run of a plan, in the order in which they were added.
struct CudnnAttention::Pass {
  void Add(Id id, const void* address) {
    ids.push_back(id);
    addresses.push_back(const_cast<void*>(address));
  }
  void AddLists(const SequenceLists& lists) {
    Add(Id::kQueryCounts, lists.counts);
    Add(Id::kKeyCounts, lists.counts);
    Add(Id::kQkvOffsets, lists.offsets[0]);
    Add(Id::kOutOffsets, lists.offsets[1]);
    Add(Id::kHeadOffsets, lists.offsets[5]);
  }
  // Queries, keys and values concatenated in each row.
  void AddQkv(const ConstMatrix& qkv, const AttentionShape& shape) {
    const auto* const first = static_cast<const uint16_t*>(qkv.data);
    Add(Id::kQueries, first);
    Add(Id::kKeys, first + shape.q_size());
    Add(Id::kValues, first + shape.q_size() + shape.kv_size());
    scale = static_cast<float>(shape.scale());
    Add(Id::kScale, &scale);
    Add(Id::kMasked, &masked);
  }

  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  void* workspace = nullptr;
  float scale = 1;
  const float masked = -std::numeric_limits<float>::infinity();
  const float one = 1;
};

absl::StatusOr<std::unique_ptr<CudnnAttention>> CudnnAttention::Create(const Cudnn& cudnn,
                                                                       Device& device,
                                                                       Stream& stream) {
  const int capability = GpuOf(device).capability;
  if (capability / 10 != 9 && capability / 10 != 10) {
    return Unimplemented(
        "cuDNN's attention is for compute capability 9.0 and 10.x, this GPU is {}.{}",
        capability / 10, capability % 10);
  }
  cudnnHandle_t handle = nullptr;
  SHOAL_RETURN_IF_ERROR(CudnnStatus(cudnn, cudnn.create(&handle), "starting"));
  const absl::Status on_stream =
      CudnnStatus(cudnn, cudnn.set_stream(handle, NativeStream(stream)), "choosing a stream");
  if (!on_stream.ok()) {
    cudnn.destroy(handle);
    return on_stream;
  }
  return std::unique_ptr<CudnnAttention>(new CudnnAttention(cudnn, device, stream, handle));
}

CudnnAttention::CudnnAttention(const Cudnn& cudnn, Device& device, Stream& stream,
                               cudnnHandle_t handle)
    : cudnn_(cudnn),
      device_(device),
      stream_(stream),
      handle_(handle),
      lists_(device, stream),
      kept_(device, [this] { return GiveBackScratch(); }) {}

CudnnAttention::~CudnnAttention() {
  plans_.clear();
  cudnn_.destroy(handle_);
}

CudnnAttention::Planned* CudnnAttention::PlanFor(const AttentionBounds& bounds) {
  const auto found = std::ranges::find(plans_, bounds, &Planned::bounds);
  if (found != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, found);
  } else {
    const bool forward = bounds.d_out_stride == 0;
    const absl::Time start = RealClock().Now();
    absl::StatusOr<CudnnPlan> plan = PlanGraph(
        forward ? AttentionForwardGraph(cudnn_, bounds) : AttentionBackwardGraph(cudnn_, bounds),
        handle_);
    plans_.push_front({.bounds = bounds, .plan = std::nullopt});
    const std::string what =
        fmt::format("attention's {} pass over up to {} sequences of up to {} tokens",
                    forward ? "forward" : "backward", bounds.sequences, bounds.longest);
    if (plan.ok()) {
      LogInfo("{}: planned by cuDNN in {:.1f} s", what,
              absl::ToDoubleSeconds(RealClock().Now() - start));
      plans_.front().plan = *std::move(plan);
    } else {
      LogWarning("{} runs on kernels of our own: {}", what, Message(plan.status()));
    }
    if (plans_.size() > kMostPlans) {
      plans_.pop_back();
    }
  }
  return plans_.front().plan.has_value() ? &plans_.front() : nullptr;
}

bool CudnnAttention::Forward(ConstMatrix qkv, const AttentionShape& shape,
                             std::span<const int32_t> cu_seqlens, Matrix out, float* log_sum_exp) {
  const AttentionBounds bounds = BoundsOf(shape, cu_seqlens, qkv.stride, out.stride, 0);
  Planned* const planned = OffsetsFit(bounds, cu_seqlens) ? PlanFor(bounds) : nullptr;
  return planned != nullptr &&
         Served(*planned, RunForward(*planned, qkv, shape, cu_seqlens, out, log_sum_exp));
}

bool CudnnAttention::Backward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                              const float* log_sum_exp, const AttentionShape& shape,
                              std::span<const int32_t> cu_seqlens, const Rotation& rotation,
                              Matrix d_qkv) {
  const AttentionBounds bounds = BoundsOf(shape, cu_seqlens, qkv.stride, out.stride, d_out.stride);
  Planned* const planned = OffsetsFit(bounds, cu_seqlens) ? PlanFor(bounds) : nullptr;
  return planned != nullptr && Served(*planned, RunBackward(*planned, d_out, qkv, out, log_sum_exp,
                                                            shape, cu_seqlens, rotation, d_qkv));
}

// Does nothing during a pass that uses the scratch, which may itself allocate.
bool CudnnAttention::GiveBackScratch() {
  if (!scratch_mutex_.TryLock()) {
    return false;
  }
  const bool any = scratch_.data() != nullptr;
  scratch_.Reset();
  scratch_mutex_.Unlock();
  return any;
}

template <typename Scratch>
absl::StatusOr<Scratch> CudnnAttention::ScratchFor(const Planned& planned, int64_t used) {
  const int64_t workspace = planned.plan->workspace_bytes();
  // Leaves room to start at a multiple of 256.
  const int64_t bytes = Scratch(Pieces(), planned.bounds, used, workspace).bytes + kWorkspaceUnit;
  if (bytes > scratch_.bytes()) {
    scratch_.Reset();
    SHOAL_ASSIGN_OR_RETURN(scratch_, device_.Allocate(bytes));
  }
  const auto address = reinterpret_cast<intptr_t>(scratch_.data());
  std::byte* const begin = scratch_.data() + (RoundUp(address, kWorkspaceUnit) - address);
  return Scratch(Pieces(begin), planned.bounds, used, workspace);
}

absl::Status CudnnAttention::RunForward(Planned& planned, ConstMatrix qkv,
                                        const AttentionShape& shape,
                                        std::span<const int32_t> cu_seqlens, Matrix out,
                                        float* log_sum_exp) {
  const AttentionBounds& bounds = planned.bounds;
  const int64_t used = cu_seqlens.back();
  SHOAL_ASSIGN_OR_RETURN(const SequenceLists lists,
                         lists_.Get(bounds.sequences, WidthsOf(bounds), cu_seqlens));
  absl::MutexLock lock(&scratch_mutex_);
  SHOAL_ASSIGN_OR_RETURN(const auto scratch, ScratchFor<ForwardScratch>(planned, used));
  Pass pass;
  pass.workspace = scratch.workspace;
  pass.AddQkv(qkv, shape);
  pass.AddLists(lists);
  pass.Add(Id::kOut, out.data);
  pass.Add(Id::kLogSumExp, scratch.log_sum_exp);
  SHOAL_RETURN_IF_ERROR(Run(planned, pass));
  return ToStatus(ToByHead(NativeStream(stream_), {.by_token = scratch.log_sum_exp,
                                                   .by_head = log_sum_exp,
                                                   .used = used,
                                                   .tokens = qkv.rows,
                                                   .heads = shape.heads}),
                  "attention's log-sum-exp");
}

absl::Status CudnnAttention::RunBackward(Planned& planned, ConstMatrix d_out, ConstMatrix qkv,
                                         ConstMatrix out, const float* log_sum_exp,
                                         const AttentionShape& shape,
                                         std::span<const int32_t> cu_seqlens,
                                         const Rotation& rotation, Matrix d_qkv) {
  const AttentionBounds& bounds = planned.bounds;
  const int64_t used = cu_seqlens.back();
  SHOAL_ASSIGN_OR_RETURN(const SequenceLists lists,
                         lists_.Get(bounds.sequences, WidthsOf(bounds), cu_seqlens));
  absl::MutexLock lock(&scratch_mutex_);
  SHOAL_ASSIGN_OR_RETURN(const auto scratch, ScratchFor<BackwardScratch>(planned, used));
  SHOAL_RETURN_IF_ERROR(
      ToStatus(ToByToken(NativeStream(stream_), {.by_token = scratch.log_sum_exp,
                                                 .by_head = const_cast<float*>(log_sum_exp),
                                                 .used = used,
                                                 .tokens = qkv.rows,
                                                 .heads = shape.heads}),
               "attention's log-sum-exp"));
  Pass pass;
  pass.workspace = scratch.workspace;
  pass.AddQkv(qkv, shape);
  pass.AddLists(lists);
  pass.Add(Id::kDOutOffsets, lists.offsets[2]);
  pass.Add(Id::kQueryOffsets, lists.offsets[3]);
  pass.Add(Id::kKvOffsets, lists.offsets[4]);
  pass.Add(Id::kOne, &pass.one);
  pass.Add(Id::kOut, out.data);
  pass.Add(Id::kDOut, d_out.data);
  pass.Add(Id::kLogSumExp, scratch.log_sum_exp);
  pass.Add(Id::kDelta, scratch.delta);
  pass.Add(Id::kDQueriesSum, scratch.d_queries_sum);
  pass.Add(Id::kDQueries, scratch.d_queries);
  pass.Add(Id::kDKeys, scratch.d_keys);
  pass.Add(Id::kDValues, scratch.d_values);
  if (scratch.d_keys_of_heads != nullptr) {
    pass.Add(Id::kDKeysOfHeads, scratch.d_keys_of_heads);
    pass.Add(Id::kDValuesOfHeads, scratch.d_values_of_heads);
  }
  SHOAL_RETURN_IF_ERROR(Run(planned, pass));
  return ToStatus(JoinRows(NativeStream(stream_), {.queries = scratch.d_queries,
                                                   .keys = scratch.d_keys,
                                                   .values = scratch.d_values,
                                                   .heads = shape.heads,
                                                   .kv_heads = shape.kv_heads,
                                                   .head_dim = shape.head_dim,
                                                   .rows = used,
                                                   .to = d_qkv.data,
                                                   .to_stride = d_qkv.stride,
                                                   .positions = rotation.positions,
                                                   .cosines = rotation.cosines,
                                                   .sines = rotation.sines}),
                  "attention's gradients");
}

absl::Status CudnnAttention::Run(Planned& planned, const Pass& pass) {
  return planned.plan->Run(handle_, pass.ids, pass.addresses, pass.workspace);
}

bool CudnnAttention::Served(Planned& planned, const absl::Status& status) {
  if (!status.ok()) {
    LogWarning("attention runs on kernels of our own for batches like this: {}", Message(status));
    planned.plan.reset();
    return false;
  }
  ++served_;
  return true;
}

absl::Status CudnnAttention::ToStatus(cudaError_t error, const char* what) const {
  return gpu::ToStatus(error, GpuOf(device_).index, what);
}

}  // namespace shoal::worker::cuda
