// Attention of one new token. Bound by memory, the cache of keys and values, and by how many warps
// read it: one warp per head and split. A second launch adds up the splits' sums in order.
#include "worker/ops/cuda/attention/plain.h"
#include "worker/ops/cuda/attention/plain_ops.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kThreads = kAttentionThreads;

// Returns one head's and split's sums[head_dim], followed by its sum of weights and its maximum.
SHOAL_DEVICE float* PartialOf(const AttentionDecodeArgs& args, int head, int split) {
  return args.partials +
         (static_cast<int64_t>(head) * args.splits + split) * (args.problem.head_dim + 2);
}

template <typename T, int kElements>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4) DecodePartialKernel(const AttentionDecodeArgs args) {
  const AttentionProblem& problem = args.problem;
  const int width = problem.head_dim;
  const int head = BlockX() * kAttentionWarps + WarpIndex();
  if (head >= problem.heads()) {
    return;
  }
  const int split = BlockY();
  const int length = static_cast<int>(args.keys.rows);
  const int units = (length + kWarp - 1) / kWarp;
  const int each = (units + args.splits - 1) / args.splits * kWarp;
  const int64_t column = static_cast<int64_t>(head / problem.group.size) * width;
  float* const partial = PartialOf(args, head, split);
  const SoftmaxState state = AttendRow<T, kElements>(
      problem, static_cast<const T*>(args.q.data) + static_cast<int64_t>(head) * width,
      Smaller(split * each, length), Smaller((split + 1) * each, length), partial,
      [&](int key) {
        return static_cast<const T*>(args.keys.data) + key * args.keys.stride + column;
      },
      [&](int key) {
        return static_cast<const T*>(args.values.data) + key * args.values.stride + column;
      });
  if (LaneIndex() == 0) {
    partial[width] = state.sum;
    partial[width + 1] = state.maximum;
  }
}

// One warp per head.
template <typename T>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4) DecodeMergeKernel(const AttentionDecodeArgs args) {
  const int width = args.problem.head_dim;
  const int head = BlockX() * kAttentionWarps + WarpIndex();
  if (head >= args.problem.heads()) {
    return;
  }
  float maximum = -INFINITY;
  for (int split = 0; split < args.splits; ++split) {
    maximum = fmaxf(maximum, PartialOf(args, head, split)[width + 1]);
  }
  float sum = 0;
  for (int split = 0; split < args.splits; ++split) {
    const float* partial = PartialOf(args, head, split);
    sum += partial[width] * Exp2(partial[width + 1] - maximum);
  }
  T* out = static_cast<T*>(args.out.data) + static_cast<int64_t>(head) * width;
  for (int column = LaneIndex(); column < width; column += kWarp) {
    float value = 0;
    for (int split = 0; split < args.splits; ++split) {
      const float* partial = PartialOf(args, head, split);
      value += partial[column] * Exp2(partial[width + 1] - maximum);
    }
    out[column] = FromFloat<T>(value / sum);
  }
}

template <typename T, int kElements>
cudaError_t LaunchDecode(cudaStream_t stream, const AttentionDecodeArgs& args) {
  const int64_t blocks = (args.problem.heads() + kAttentionWarps - 1) / kAttentionWarps;
  const cudaError_t error = Launch(stream, {.x = blocks, .y = args.splits}, kThreads, 0,
                                   DecodePartialKernel<T, kElements>, args);
  return error != cudaSuccess
             ? error
             : Launch(stream, {.x = blocks}, kThreads, 0, DecodeMergeKernel<T>, args);
}

}  // namespace

cudaError_t AttentionDecode(cudaStream_t stream, const AttentionDecodeArgs& args) {
  const int64_t width = args.problem.head_dim;
  const bool aligned = RowsAreAligned(args.q.data, args.q.stride, args.q.element, width) &&
                       RowsAreAligned(args.keys.data, args.keys.stride, args.keys.element, width);
  if (args.q.element == Element::kF32) {
    return aligned ? LaunchDecode<float, 4>(stream, args) : LaunchDecode<float, 1>(stream, args);
  }
  return aligned ? LaunchDecode<Bf16, 8>(stream, args) : LaunchDecode<Bf16, 1>(stream, args);
}

}  // namespace shoal::worker::cuda
