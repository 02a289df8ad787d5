#include "worker/ops/cuda/attention/attention.h"

#include <algorithm>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/attention/alignment.h"
#include "worker/ops/cuda/attention/backward.h"
#include "worker/ops/cuda/attention/forward.h"
#include "worker/ops/cuda/attention/plain.h"
#include "worker/ops/cuda/attention/statistics.h"
#include "worker/ops/cuda/kernels/rotary.h"
#include "worker/ops/cuda/kernels/views.h"

namespace shoal::worker::cuda {
namespace {

constexpr int64_t kScratchUnit = int64_t{1} << 20;

AttentionProblem ProblemOf(const AttentionShape& shape, int64_t tokens) {
  SHOAL_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim > 0);
  const auto group = static_cast<int32_t>(shape.heads / shape.kv_heads);
  // Limit of int32 row counts, to which a window's are added, and of GroupDivider.
  SHOAL_CHECK(tokens * group * std::max<int64_t>({group, shape.kv_heads, 2}) < int64_t{1} << 31);
  return {
      .tokens = static_cast<int32_t>(tokens),
      .kv_heads = static_cast<int32_t>(shape.kv_heads),
      .head_dim = static_cast<int32_t>(shape.head_dim),
      .group = GroupDivider::Of(group),
      .window = static_cast<int32_t>(shape.window > 0 ? std::min(shape.window, tokens) : tokens),
      .scale = static_cast<float>(shape.scale()),
      .softcap = static_cast<float>(shape.softcap)};
}

// Returns how many tokens the sequences have; they are packed from the first row on.
int64_t UsedTokens(std::span<const int32_t> cu_seqlens, int64_t tokens) {
  SHOAL_CHECK(!cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() <= tokens);
  SHOAL_CHECK(std::is_sorted(cu_seqlens.begin(), cu_seqlens.end()));
  return cu_seqlens.back();
}

// Whether tensor cores can read or write the matrix.
bool IsForTensorCores(const ConstMatrix& matrix, const AttentionShape& shape) {
  return matrix.dtype == DType::kBF16 &&
         RowsAreAligned(matrix.data, matrix.stride, ToElement(matrix.dtype), shape.head_dim);
}

// Whether the fused kernels have such attention.
bool IsForFused(const AttentionShape& shape) { return shape.window == 0 && shape.softcap == 0; }

// The tiles of kernels on tensor cores; of width 0 for what only the plain ones do.
AttentionTiles TilesFor(const AttentionShape& shape, int64_t shared_bytes) {
  return shape.softcap > 0 ? AttentionTiles() : AttentionTilesFor(shape.head_dim, shared_bytes);
}

// Whether JoinRows can read 16 bytes at a time.
bool IsForWideLoads(const Rotation& rotation) {
  return (reinterpret_cast<uintptr_t>(rotation.cosines) |
          reinterpret_cast<uintptr_t>(rotation.sines)) %
             16 ==
         0;
}

cudaError_t ZeroUnused(cudaStream_t stream, const Matrix& matrix, int64_t used) {
  return used == matrix.rows ? cudaSuccess : ZeroRowsFrom(stream, ToView(matrix), used);
}

}  // namespace

Attention::Attention(Device& device, Stream& stream, AttentionOptions options)
    : device_(device),
      stream_(NativeStream(stream)),
      deterministic_(options.deterministic),
      shared_bytes_(options.shared_bytes > 0 ? options.shared_bytes : GpuOf(device).shared_bytes),
      fused_(std::move(options.fused)),
      backward_pass_(std::move(options.backward_pass)),
      lists_(device, stream) {}

absl::Status Attention::Forward(ConstMatrix qkv, const AttentionShape& shape,
                                std::span<const int32_t> cu_seqlens, Matrix out,
                                float* log_sum_exp) {
  SHOAL_CHECK(qkv.columns == shape.qkv_size() && out.columns == shape.q_size());
  SHOAL_CHECK(qkv.dtype == out.dtype && qkv.rows == out.rows);
  const AttentionProblem whole = ProblemOf(shape, qkv.rows);
  const int64_t used = UsedTokens(cu_seqlens, qkv.rows);
  SHOAL_RETURN_IF_ERROR(ToStatus(ZeroUnused(stream_, out, used), "zeroing attention's padding"));
  if (used == 0) {
    return absl::OkStatus();
  }
  if (fused_ != nullptr && IsForFused(shape) && IsForTensorCores(qkv, shape) &&
      IsForTensorCores(out, shape) && fused_->Forward(qkv, shape, cu_seqlens, out, log_sum_exp)) {
    return absl::OkStatus();
  }
  const AttentionTiles tiles = TilesFor(shape, shared_bytes_);
  const bool tensor_cores = tiles.width > 0 && tiles.forward_bytes() <= shared_bytes_ &&
                            IsForTensorCores(qkv, shape) && IsForTensorCores(out, shape);
  SHOAL_ASSIGN_OR_RETURN(const AttentionProblem problem,
                         WithTiles(whole, TileCut::Of::kRows,
                                   tensor_cores ? tiles.forward_rows : kPlainTile, cu_seqlens));
  return ToStatus(
      tensor_cores ? AttentionForward(stream_, {.problem = problem,
                                                .tiles = tiles,
                                                .qkv = qkv.data,
                                                .qkv_stride = qkv.stride,
                                                .out = out.data,
                                                .out_stride = out.stride,
                                                .log_sum_exp = log_sum_exp})
                   : PlainAttentionForward(stream_, problem, ToView(qkv), ToView(out), log_sum_exp),
      "attention's forward pass");
}

absl::Status Attention::Backward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                                 const float* log_sum_exp, const AttentionShape& shape,
                                 std::span<const int32_t> cu_seqlens, const Rotation& rotation,
                                 Matrix d_qkv) {
  SHOAL_CHECK(qkv.columns == shape.qkv_size() && SameShape(qkv, d_qkv) && SameShape(d_out, out));
  SHOAL_CHECK(out.columns == shape.q_size() && out.rows == qkv.rows && out.dtype == qkv.dtype);
  const AttentionProblem whole = ProblemOf(shape, qkv.rows);
  const int64_t used = UsedTokens(cu_seqlens, qkv.rows);
  SHOAL_RETURN_IF_ERROR(ToStatus(ZeroUnused(stream_, d_qkv, used), "zeroing attention's padding"));
  if (used == 0) {
    return absl::OkStatus();
  }
  if (fused_ != nullptr && IsForFused(shape) && !deterministic_ && IsForTensorCores(qkv, shape) &&
      IsForTensorCores(out, shape) && IsForTensorCores(d_out, shape) &&
      IsForTensorCores(d_qkv, shape) && IsForWideLoads(rotation) &&
      fused_->Backward(d_out, qkv, out, log_sum_exp, shape, cu_seqlens,
                       rotation.dims == 0 ? rotation : Rotation(), d_qkv)) {
    TellOfBackward(true);
    return rotation.dims == 0 ? absl::OkStatus() : TurnBack(shape, rotation, d_qkv);
  }
  TellOfBackward(false);
  SHOAL_ASSIGN_OR_RETURN(std::byte* const scratch,
                         Scratch(qkv.rows * shape.heads * sizeof(RowStatistics)));
  auto* const statistics = reinterpret_cast<RowStatistics*>(scratch);
  SHOAL_RETURN_IF_ERROR(ToStatus(AttentionStatistics(stream_, {.problem = whole,
                                                               .used_tokens = used,
                                                               .d_out = ToView(d_out),
                                                               .out = ToView(out),
                                                               .log_sum_exp = log_sum_exp,
                                                               .statistics = statistics}),
                                 "attention's statistics"));
  const AttentionTiles tiles = TilesFor(shape, shared_bytes_);
  const bool tensor_cores = tiles.width > 0 && tiles.backward_bytes() <= shared_bytes_ &&
                            IsForTensorCores(qkv, shape) && IsForTensorCores(d_out, shape) &&
                            IsForTensorCores(d_qkv, shape);
  SHOAL_ASSIGN_OR_RETURN(const AttentionProblem keys,
                         WithTiles(whole, TileCut::Of::kKeys,
                                   tensor_cores ? tiles.d_key_keys : kPlainTile, cu_seqlens));
  SHOAL_ASSIGN_OR_RETURN(const AttentionProblem rows,
                         WithTiles(whole, TileCut::Of::kRows,
                                   tensor_cores ? tiles.d_query_rows : kPlainTile, cu_seqlens));
  const char* const what = "attention's backward pass";
  if (!tensor_cores) {
    PlainBackwardArgs args{.problem = keys,
                           .d_out = ToView(d_out),
                           .qkv = ToView(qkv),
                           .statistics = statistics,
                           .d_qkv = ToView(d_qkv)};
    SHOAL_RETURN_IF_ERROR(ToStatus(PlainAttentionKeyGradients(stream_, args), what));
    args.problem = rows;
    SHOAL_RETURN_IF_ERROR(ToStatus(PlainAttentionQueryGradients(stream_, args), what));
    return TurnBack(shape, rotation, d_qkv);
  }
  SHOAL_RETURN_IF_ERROR(ToStatus(AttentionBackward(stream_, {.keys = keys,
                                                             .rows = rows,
                                                             .tiles = tiles,
                                                             .d_out = d_out.data,
                                                             .d_out_stride = d_out.stride,
                                                             .qkv = qkv.data,
                                                             .qkv_stride = qkv.stride,
                                                             .statistics = statistics,
                                                             .d_qkv = d_qkv.data,
                                                             .d_qkv_stride = d_qkv.stride}),
                                 what));
  return TurnBack(shape, rotation, d_qkv);
}

absl::Status Attention::TurnBack(const AttentionShape& shape, const Rotation& rotation,
                                 const Matrix& d_qkv) const {
  if (rotation.positions == nullptr) {
    return absl::OkStatus();
  }
  return ToStatus(Rotary(stream_, {.x = ToView(d_qkv),
                                   .heads = shape.heads + shape.kv_heads,
                                   .head_dim = shape.head_dim,
                                   .dims = rotation.dims_of(shape.head_dim),
                                   .positions = rotation.positions,
                                   .cosines = rotation.cosines,
                                   .sines = rotation.sines,
                                   .backward = true}),
                  "turning attention's gradients back");
}

absl::Status Attention::Decode(ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                               const AttentionShape& shape, Matrix out) {
  SHOAL_CHECK(q.rows == 1 && q.columns == shape.q_size() && SameShape(q, out));
  SHOAL_CHECK(keys.rows > 0 && keys.columns == shape.kv_size() && SameShape(keys, values));
  SHOAL_CHECK(q.dtype == keys.dtype);
  AttentionDecodeArgs args{.problem = ProblemOf(shape, keys.rows),
                           .q = ToView(q),
                           .keys = ToView(keys),
                           .values = ToView(values),
                           .out = ToView(out),
                           .splits = DecodeSplits(keys.rows)};
  SHOAL_ASSIGN_OR_RETURN(
      std::byte* const scratch,
      Scratch(DecodePartialFloats(shape.heads, shape.head_dim, args.splits) * sizeof(float)));
  args.partials = reinterpret_cast<float*>(scratch);
  return ToStatus(AttentionDecode(stream_, args), "attention of a new token");
}

absl::StatusOr<AttentionProblem> Attention::WithTiles(AttentionProblem problem, TileCut::Of of,
                                                      int32_t size,
                                                      std::span<const int32_t> cu_seqlens) {
  SHOAL_ASSIGN_OR_RETURN(
      const WorkLists::List list,
      lists_.Get({.of = of, .size = size, .group = problem.group.size}, cu_seqlens));
  problem.tiles = list.tiles;
  problem.tile_count = list.count;
  return problem;
}

absl::StatusOr<std::byte*> Attention::Scratch(int64_t bytes) {
  if (bytes > scratch_.bytes()) {
    scratch_.Reset();
    SHOAL_ASSIGN_OR_RETURN(scratch_, device_.Allocate(RoundUp(bytes, kScratchUnit)));
  }
  return scratch_.data();
}

void Attention::TellOfBackward(bool fused) const {
  if (backward_pass_) {
    backward_pass_(fused);
  }
}

absl::Status Attention::ToStatus(cudaError_t error, const char* what) const {
  return gpu::ToStatus(error, GpuOf(device_).index, what);
}

}  // namespace shoal::worker::cuda
