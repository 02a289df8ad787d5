#include "worker/ops/cuda/attention/plain.h"
#include "worker/ops/cuda/attention/plain_ops.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kThreads = kAttentionThreads;
constexpr int kRowsOfWarp = kPlainTile / kAttentionWarps;

template <typename T>
struct In {
  const T* data = nullptr;
  int64_t stride = 0;
};
template <typename T>
In<T> InOf(const ConstView& view) {
  return {static_cast<const T*>(view.data), view.stride};
}

// Returns the calling warp's `vectors` sums.
SHOAL_DEVICE float* WarpSums(int columns, int vectors) {
  return reinterpret_cast<float*>(DynamicShared()) + WarpIndex() * columns * vectors;
}
int64_t WarpSumBytes(const AttentionProblem& problem, int vectors) {
  return int64_t{kAttentionWarps} * problem.head_dim * vectors * 4;
}

template <typename T, int kElements>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4)
    PlainForwardKernel(const AttentionProblem problem, In<T> qkv, T* out, int64_t out_stride,
                       float* log_sum_exp) {
  const HeadOfSequence head = HeadOfBlock(problem, BlockX());
  float* const sums = WarpSums(problem.head_dim, 1);
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int row = head.tile.first + WarpIndex() * kRowsOfWarp + i;
    if (row >= head.rows(problem)) {
      return;
    }
    const int query = problem.group.Quotient(row);
    const SoftmaxState state = AttendRow<T, kElements>(
        problem, qkv.data + head.RowOffset(problem, qkv.stride, row), problem.FirstKey(query),
        query + 1, sums,
        [&](int key) { return qkv.data + head.KeyOffset(problem, qkv.stride, key); },
        [&](int key) { return qkv.data + head.ValueOffset(problem, qkv.stride, key); });
    StoreSums(sums, 1.0f / state.sum, problem.head_dim,
              out + head.RowOffset(problem, out_stride, row));
    if (LaneIndex() == 0) {
      const int64_t of_head = head.kv_head * problem.group.size + row - query * problem.group.size;
      log_sum_exp[of_head * problem.tokens + head.tile.begin + query] =
          state.maximum * kLogOf2 + Log(state.sum);
    }
  }
}

// A score's probability, and its gradient without the scale.
struct Gradient {
  float probability;
  float d_score;
};
template <typename T, int kElements>
SHOAL_DEVICE Gradient GradientOf(const T* query, const T* key, const T* d_out, const T* value,
                                 RowStatistics statistics, const AttentionProblem& problem) {
  const Score score = ScoreOf(problem, Dot<T, kElements>(query, key, problem.head_dim));
  const float d_probability = Dot<T, kElements>(d_out, value, problem.head_dim);
  const float p = Exp2(score.log2 - statistics.log2_sum_exp);
  return {p, p * (d_probability - statistics.delta) * score.slope};
}

template <typename T>
struct Backward {
  AttentionProblem problem;
  In<T> d_out;
  In<T> qkv;
  const RowStatistics* statistics;
  T* d_qkv;
  int64_t d_qkv_stride;
};

template <typename T, int kElements>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4) PlainQueryGradientsKernel(const Backward<T> args) {
  const AttentionProblem& problem = args.problem;
  const HeadOfSequence head = HeadOfBlock(problem, BlockX());
  float* const sums = WarpSums(problem.head_dim, 1);
  const auto key_of = [&](int key) {
    return args.qkv.data + head.KeyOffset(problem, args.qkv.stride, key);
  };
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int row = head.tile.first + WarpIndex() * kRowsOfWarp + i;
    if (row >= head.rows(problem)) {
      return;
    }
    const T* query = args.qkv.data + head.RowOffset(problem, args.qkv.stride, row);
    const T* d_out = args.d_out.data + head.RowOffset(problem, args.d_out.stride, row);
    const RowStatistics statistics = args.statistics[head.StatisticsOffset(problem, row)];
    const int end = problem.group.Quotient(row) + 1;
    ZeroSums(sums, problem.head_dim);
    for (int first = problem.FirstKey(end - 1); first < end; first += kWarp) {
      const int own = first + LaneIndex();
      Gradient gradient = {};
      if (own < end) {
        gradient = GradientOf<T, kElements>(
            query, key_of(own), d_out,
            args.qkv.data + head.ValueOffset(problem, args.qkv.stride, own), statistics, problem);
      }
      AddWeighted<T>(sums, 1.0f, gradient.d_score, Smaller(kWarp, end - first), problem.head_dim,
                     [&](int key) { return key_of(first + key); });
    }
    StoreSums(sums, problem.scale, problem.head_dim,
              args.d_qkv + head.RowOffset(problem, args.d_qkv_stride, row));
  }
}

template <typename T, int kElements>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 4) PlainKeyGradientsKernel(const Backward<T> args) {
  const AttentionProblem& problem = args.problem;
  const HeadOfSequence head = HeadOfBlock(problem, BlockX());
  float* const d_key = WarpSums(problem.head_dim, 2);
  float* const d_value = d_key + problem.head_dim;
  const auto query_of = [&](int row) {
    return args.qkv.data + head.RowOffset(problem, args.qkv.stride, row);
  };
  const auto d_out_of = [&](int row) {
    return args.d_out.data + head.RowOffset(problem, args.d_out.stride, row);
  };
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int key = head.tile.first + WarpIndex() * kRowsOfWarp + i;
    if (key >= head.tile.length) {
      return;
    }
    const int end = Smaller(head.rows(problem), (key + problem.window) * problem.group.size);
    const T* own_key = args.qkv.data + head.KeyOffset(problem, args.qkv.stride, key);
    const T* own_value = args.qkv.data + head.ValueOffset(problem, args.qkv.stride, key);
    ZeroSums(d_key, problem.head_dim);
    ZeroSums(d_value, problem.head_dim);
    for (int first = key * problem.group.size; first < end; first += kWarp) {
      const int own = first + LaneIndex();
      const int count = Smaller(kWarp, end - first);
      Gradient gradient = {};
      if (own < end) {
        gradient =
            GradientOf<T, kElements>(query_of(own), own_key, d_out_of(own), own_value,
                                     args.statistics[head.StatisticsOffset(problem, own)], problem);
      }
      AddWeighted<T>(d_value, 1.0f, gradient.probability, count, problem.head_dim,
                     [&](int row) { return d_out_of(first + row); });
      AddWeighted<T>(d_key, 1.0f, gradient.d_score, count, problem.head_dim,
                     [&](int row) { return query_of(first + row); });
    }
    StoreSums(d_key, problem.scale, problem.head_dim,
              args.d_qkv + head.KeyOffset(problem, args.d_qkv_stride, key));
    StoreSums(d_value, 1.0f, problem.head_dim,
              args.d_qkv + head.ValueOffset(problem, args.d_qkv_stride, key));
  }
}

// Calls launch<T, kElements> for the type and alignment of the rows.
template <typename Launches>
cudaError_t WithElements(Element element, bool aligned, const Launches& launch) {
  if (element == Element::kF32) {
    return aligned ? launch.template operator()<float, 4>()
                   : launch.template operator()<float, 1>();
  }
  return aligned ? launch.template operator()<Bf16, 8>() : launch.template operator()<Bf16, 1>();
}

template <typename T>
Backward<T> BackwardOf(const PlainBackwardArgs& args) {
  return {args.problem,
          InOf<T>(args.d_out),
          InOf<T>(args.qkv),
          args.statistics,
          static_cast<T*>(args.d_qkv.data),
          args.d_qkv.stride};
}

bool IsAligned(const PlainBackwardArgs& args) {
  const int64_t width = args.problem.head_dim;
  return RowsAreAligned(args.d_out.data, args.d_out.stride, args.d_out.element, width) &&
         RowsAreAligned(args.qkv.data, args.qkv.stride, args.qkv.element, width);
}

}  // namespace

cudaError_t PlainAttentionForward(cudaStream_t stream, const AttentionProblem& problem,
                                  const ConstView& qkv, const View& out, float* log_sum_exp) {
  const bool aligned = RowsAreAligned(qkv.data, qkv.stride, qkv.element, problem.head_dim);
  return WithElements(qkv.element, aligned, [&]<typename T, int kElements>() {
    return Launch(stream, {.x = problem.blocks()}, kThreads, WarpSumBytes(problem, 1),
                  PlainForwardKernel<T, kElements>, problem, InOf<T>(qkv),
                  static_cast<T*>(out.data), out.stride, log_sum_exp);
  });
}

cudaError_t PlainAttentionQueryGradients(cudaStream_t stream, const PlainBackwardArgs& args) {
  return WithElements(args.qkv.element, IsAligned(args), [&]<typename T, int kElements>() {
    return Launch(stream, {.x = args.problem.blocks()}, kThreads, WarpSumBytes(args.problem, 1),
                  PlainQueryGradientsKernel<T, kElements>, BackwardOf<T>(args));
  });
}

cudaError_t PlainAttentionKeyGradients(cudaStream_t stream, const PlainBackwardArgs& args) {
  return WithElements(args.qkv.element, IsAligned(args), [&]<typename T, int kElements>() {
    return Launch(stream, {.x = args.problem.blocks()}, kThreads, WarpSumBytes(args.problem, 2),
                  PlainKeyGradientsKernel<T, kElements>, BackwardOf<T>(args));
  });
}

}  // namespace shoal::worker::cuda
