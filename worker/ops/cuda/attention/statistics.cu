// Both are bound by memory: delta reads d_out and out once, each lane 16 bytes where rows are
// aligned to that, lanes of a head side by side.
#include "worker/ops/cuda/attention/elements.h"
#include "worker/ops/cuda/attention/statistics.h"
#include "worker/ops/cuda/attention/tile_words.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kThreads = 256;

// `lanes`, a power of two, share a head.
template <typename T, int kElements>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4)
    AttentionStatisticsKernel(const AttentionStatisticsArgs args, int lanes) {
  const AttentionProblem& problem = args.problem;
  const int64_t index =
      (static_cast<int64_t>(BlockX()) * kThreads + ThreadIndex()) / lanes;  // of a head of a token
  const bool valid = index < args.used_tokens * problem.heads();
  const int64_t token = valid ? index / problem.heads() : 0;
  const int head = valid ? static_cast<int>(index - token * problem.heads()) : 0;
  const int64_t column = static_cast<int64_t>(head) * problem.head_dim;
  const T* d_out = static_cast<const T*>(args.d_out.data) + token * args.d_out.stride + column;
  const T* out = static_cast<const T*>(args.out.data) + token * args.out.stride + column;
  const int lane = LaneIndex() % lanes;
  float sum = 0;
  for (int i = lane * kElements; i < problem.head_dim; i += lanes * kElements) {
    sum += DotElements<T, kElements>(d_out + i, out + i);
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum += ShuffleXor(sum, distance);
  }
  if (valid && lane == 0) {
    const int kv_head = head / problem.group.size;
    const HeadOfSequence sequence{{.begin = static_cast<int32_t>(token)}, kv_head};
    args.statistics[sequence.StatisticsOffset(problem, head - kv_head * problem.group.size)] = {
        args.log_sum_exp[head * problem.tokens + token] * kLog2OfE, sum};
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
  int lanes = 1;
  while (lanes < kWarp && lanes * kElements < args.problem.head_dim) {
    lanes *= 2;
  }
  const int64_t threads = args.used_tokens * args.problem.heads() * lanes;
  return Launch(stream, {.x = (threads + kThreads - 1) / kThreads}, kThreads, 0,
                AttentionStatisticsKernel<T, kElements>, args, lanes);
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
