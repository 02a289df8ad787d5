#include <cfloat>

#include "worker/ops/cuda/kernels/cross_entropy.h"
#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"

namespace shoal::worker::cuda {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kMinusInfinity = -__builtin_inff();
// Chunks of a row that a thread has in flight.
constexpr int kChunks = 4;

// The largest of some logits, not less than the lowest number, and the sum of exp(logit - largest).
// What is not finite makes the sum NaN.
struct Exponentials {
  float largest;
  float sum;
};
SHOAL_DEVICE float ExpOf(float difference) { return Exp2Approximate(difference * kLog2E); }
SHOAL_DEVICE Exponentials Join(const Exponentials& a, const Exponentials& b) {
  const float largest = a.largest > b.largest ? a.largest : b.largest;
  return {largest, a.sum * ExpOf(a.largest - largest) + b.sum * ExpOf(b.largest - largest)};
}
// Of all parts of a row, in order.
SHOAL_DEVICE Exponentials JoinParts(const Exponentials* parts, int64_t count) {
  Exponentials all = parts[0];
  for (int64_t i = 1; i < count; ++i) {
    all = Join(all, parts[i]);
  }
  return all;
}

struct Scratch {
  Exponentials* parts;  // [count, parts]
  float* chosen;        // [count]: the logits of the labels
};

// A block a part of a row.
template <int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    PartKernel(CrossEntropyArgs args, LongRowTiling tiling, Scratch scratch) {
  SHOAL_SHARED Exponentials shared[kBlockWarps];
  const int64_t parts = tiling.parts;
  const int64_t row = BlockX() / parts;
  const int64_t part = BlockX() % parts;
  const int64_t begin = part * tiling.part_columns;
  const int64_t end = begin + tiling.part_columns < args.logits.columns
                          ? begin + tiling.part_columns
                          : args.logits.columns;
  const int64_t start = row * args.logits.stride;
  Exponentials mine = {-FLT_MAX, 0};
  constexpr int kStep = kBlockThreads * kCount;
  for (int64_t column = begin + ThreadIndex() * kCount; column < end; column += kChunks * kStep) {
    float x[kChunks][kCount];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (column + i * kStep < end) {
        LoadFloats<float>(args.logits.data, start + column + i * kStep, x[i]);
      } else {
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          x[i][j] = kMinusInfinity;
        }
      }
    }
    float largest = mine.largest;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        largest = x[i][j] > largest ? x[i][j] : largest;
      }
    }
    mine = {largest, mine.sum * ExpOf(mine.largest - largest)};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        mine.sum += ExpOf(x[i][j] - largest);
      }
    }
  }
  const float largest = WarpMax(mine.largest);
  const float sum = WarpSum(mine.sum * ExpOf(mine.largest - largest));
  if (LaneIndex() == 0) {
    shared[WarpIndex()] = {largest, sum};
  }
  SyncBlock();
  if (ThreadIndex() == 0) {
    scratch.parts[row * parts + part] = JoinParts(shared, kBlockWarps);
    if (part == 0) {
      scratch.chosen[row] = static_cast<const float*>(args.logits.data)[start + args.labels[row]];
    }
  }
}

// One block: the rows' losses in double, each thread's in order, then the threads' pairwise.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 1)
    LossKernel(CrossEntropyArgs args, LongRowTiling tiling, Scratch scratch) {
  SHOAL_SHARED double shared[kBlockThreads];
  double loss = 0;
  for (int64_t row = ThreadIndex(); row < args.count; row += kBlockThreads) {
    const Exponentials all = JoinParts(scratch.parts + row * tiling.parts, tiling.parts);
    const float log_sum = all.largest + Log(all.sum);
    loss += static_cast<double>(log_sum) - static_cast<double>(scratch.chosen[row]);
  }
  shared[ThreadIndex()] = loss;
  SyncBlock();
  for (int distance = kBlockThreads / 2; distance > 0; distance /= 2) {
    if (ThreadIndex() < distance) {
      shared[ThreadIndex()] += shared[ThreadIndex() + distance];
    }
    SyncBlock();
  }
  if (ThreadIndex() == 0) {
    *args.loss_sum += shared[0];
  }
}

// A block a part of a row, of the rows after `count` too.
template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    GradientKernel(CrossEntropyArgs args, LongRowTiling tiling, Scratch scratch) {
  const int64_t parts = tiling.parts;
  const int64_t row = BlockX() / parts;
  const int64_t begin = BlockX() % parts * tiling.part_columns;
  const int64_t end = begin + tiling.part_columns < args.logits.columns
                          ? begin + tiling.part_columns
                          : args.logits.columns;
  const bool counts = row < args.count;
  Exponentials all = {0, 1};
  int64_t label = -1;
  if (counts) {
    all = JoinParts(scratch.parts + row * parts, parts);
    label = args.labels[row];
  }
  const float inverse = 1.0f / all.sum;
  constexpr int kStep = kBlockThreads * kCount;
  for (int64_t column = begin + ThreadIndex() * kCount; column < end; column += kChunks * kStep) {
    float x[kChunks][kCount] = {};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (counts && column + i * kStep < end) {
        LoadFloats<float>(args.logits.data, row * args.logits.stride + column + i * kStep, x[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int64_t at = column + i * kStep;
      if (at < end) {
        if (counts) {
#pragma unroll
          for (int j = 0; j < kCount; ++j) {
            const float probability = ExpOf(x[i][j] - all.largest) * inverse;
            x[i][j] = (at + j == label ? probability - 1.0f : probability) * args.scale;
          }
        }
        StoreFloats<T>(x[i], args.d_logits.data, row * args.d_logits.stride + at);
      }
    }
  }
}

}  // namespace

int64_t CrossEntropyScratch(int64_t count, int64_t columns) {
  const LongRowTiling tiling = TileLongRows(count, columns);
  return count * (tiling.parts * static_cast<int64_t>(sizeof(Exponentials)) +
                  static_cast<int64_t>(sizeof(float)));
}

cudaError_t SoftmaxCrossEntropy(cudaStream_t stream, const CrossEntropyArgs& args, void* scratch) {
  const LongRowTiling tiling = TileLongRows(args.count, args.logits.columns);
  auto* const parts = static_cast<Exponentials*>(scratch);
  const Scratch pieces = {parts, reinterpret_cast<float*>(parts + args.count * tiling.parts)};
  // How rows are read decides in which order their sums are: the same with a gradient or without.
  constexpr int kCount = kWide<float>;
  const auto read = [&](auto count) {
    return Launch(stream, {.x = args.count * tiling.parts}, kBlockThreads, 0, PartKernel<count>,
                  args, tiling, pieces);
  };
  cudaError_t error = WithCount<kCount>(read, args.logits);
  if (error == cudaSuccess) {
    error = Launch(stream, {}, kBlockThreads, 0, LossKernel, args, tiling, pieces);
  }
  if (error != cudaSuccess || args.d_logits.data == nullptr) {
    return error;
  }
  return WithElement(args.d_logits.element, [&]<typename T>() {
    return WithCount<kCount>(
        [&](auto count) {
          return Launch(stream, {.x = args.logits.rows * tiling.parts}, kBlockThreads, 0,
                        GradientKernel<T, count>, args, tiling, pieces);
        },
        args.logits, ConstView(args.d_logits));
  });
}

}  // namespace shoal::worker::cuda
