// Both kernels are bound by memory. Delta reads d_out and out once: each lane reads 16 bytes if
// rows are aligned, neighbouring lanes share a head.
#include "worker/ops/cuda/attention/elements.h"
#include "worker/ops/cuda/attention/statistics.h"
#include "worker/ops/cuda/attention/tile_ops.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kThreads = 256;

// 2^lanes_log2 lanes share a head.
template <typename T, int kElements>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4)
    AttentionStatisticsKernel(const AttentionStatisticsArgs args, int lanes_log2) {
  const AttentionProblem& problem = args.problem;
  const int lanes = 1 << lanes_log2;
  const auto heads = static_cast<uint32_t>(problem.heads());
  // Head of a token: fewer than 2^31.
  const uint32_t index = static_cast<uint32_t>(BlockX()) * (kThreads >> lanes_log2) +
                         (static_cast<uint32_t>(ThreadIndex()) >> lanes_log2);
  const bool valid = index < static_cast<uint32_t>(args.used_tokens) * heads;
  const uint32_t token = valid ? index / heads : 0;
  const int head = valid ? static_cast<int>(index - token * heads) : 0;
  const int lane = LaneIndex() & (lanes - 1);
  const bool writes = valid && lane == 0;
  const float log_sum_exp =
      writes ? args.log_sum_exp[static_cast<int64_t>(head) * problem.tokens + token] : 0.0f;
  const int64_t column = static_cast<int64_t>(head) * problem.head_dim;
  const T* d_out = static_cast<const T*>(args.d_out.data) + token * args.d_out.stride + column;
  const T* out = static_cast<const T*>(args.out.data) + token * args.out.stride + column;
  float sum = 0;
  for (int i = lane * kElements; i < problem.head_dim; i += lanes * kElements) {
    sum += DotElements<T, kElements>(d_out + i, out + i);
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum += ShuffleXor(sum, distance);
  }
  if (writes) {
    const int kv_head = problem.group.Quotient(head);
    const HeadOfSequence sequence{{.begin = static_cast<int32_t>(token)}, kv_head};
    args.statistics[sequence.StatisticsOffset(problem, head - kv_head * problem.group.size)] = {
        log_sum_exp * kLog2OfE, sum};
  }
}

template <typename T>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4)
    ZeroRowsKernel(T* rows, int64_t columns, int64_t stride) {
  T* row = rows + BlockX() * stride;
  for (int64_t i = ThreadIndex(); i < columns; i += kThreads) {
    row[i] = FromFloat<T>(0.0f);
  }
}

template <typename T, int kElements>
cudaError_t LaunchStatistics(cudaStream_t stream, const AttentionStatisticsArgs& args) {
  int lanes_log2 = 0;
  while (1 << lanes_log2 < kWarp && kElements << lanes_log2 < args.problem.head_dim) {
    ++lanes_log2;
  }
  const int64_t threads = args.used_tokens * args.problem.heads() << lanes_log2;
  return Launch(stream, {.x = (threads + kThreads - 1) / kThreads}, kThreads, 0,
                AttentionStatisticsKernel<T, kElements>, args, lanes_log2);
}

template <typename T>
cudaError_t LaunchZero(cudaStream_t stream, const View& matrix, int64_t first) {
  return Launch(stream, {.x = matrix.rows - first}, kThreads, 0, ZeroRowsKernel<T>,
                static_cast<T*>(matrix.data) + first * matrix.stride, matrix.columns,
                matrix.stride);
}

}  // namespace

cudaError_t AttentionStatistics(cudaStream_t stream, const AttentionStatisticsArgs& args) {
  const bool wide =
      RowsAreAligned(args.d_out.data, args.d_out.stride, args.d_out.element,
                     args.problem.head_dim) &&
      RowsAreAligned(args.out.data, args.out.stride, args.out.element, args.problem.head_dim);
  if (args.out.element == Element::kF32) {
    return wide ? LaunchStatistics<float, 4>(stream, args)
                : LaunchStatistics<float, 1>(stream, args);
  }
  return wide ? LaunchStatistics<Bf16, 8>(stream, args) : LaunchStatistics<Bf16, 1>(stream, args);
}

cudaError_t ZeroRowsFrom(cudaStream_t stream, const View& matrix, int64_t first) {
  return matrix.element == Element::kF32 ? LaunchZero<float>(stream, matrix, first)
                                         : LaunchZero<Bf16>(stream, matrix, first);
}

}  // namespace shoal::worker::cuda
