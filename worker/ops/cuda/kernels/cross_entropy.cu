#include "worker/ops/cuda/kernels/cross_entropy.h"
#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/exponentials.h"

namespace shoal::worker::cuda {
namespace {

struct Scratch {
  Exponentials* parts;  // [count, parts]
  float* chosen;        // [count]: the logits of the labels
};

SHOAL_DEVICE const float* LogitsOf(const CrossEntropyArgs& args, int64_t row) {
  return static_cast<const float*>(args.logits.data) + row * args.logits.stride;
}
// The label's logit.
SHOAL_DEVICE float LogitOf(const CrossEntropyArgs& args, int64_t row) {
  const float logit = LogitsOf(args, row)[args.rows.labels[row]];
  return args.softcap > 0 ? SoftCap(logit, args.softcap) : logit;
}
template <typename T>
SHOAL_DEVICE T* GradientsOf(const CrossEntropyArgs& args, int64_t row) {
  return static_cast<T*>(args.d_logits.data) + row * args.d_logits.stride;
}

SHOAL_DEVICE RowGradient RowGradientOf(const CrossEntropyArgs& args, int64_t row,
                                       const Exponentials& all) {
  return {all.largest, 1.0f / all.sum, args.scale * args.rows.weights[row], args.softcap,
          args.rows.labels[row]};
}

// The part of a row that a block takes.
struct PartOfRow {
  int64_t row;
  int64_t part;
  int64_t begin;
  int64_t end;
};
SHOAL_DEVICE PartOfRow PartOf(const CrossEntropyArgs& args, const LongRowTiling& tiling,
                              int64_t block) {
  const int64_t row = block / tiling.parts;
  const int64_t part = block - row * tiling.parts;
  const int64_t begin = part * tiling.part_columns;
  const int64_t end = begin + tiling.part_columns;
  return {row, part, begin, end < args.logits.columns ? end : args.logits.columns};
}

template <int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    PartKernel(CrossEntropyArgs args, LongRowTiling tiling, Scratch scratch) {
  SHOAL_SHARED float largest[kBlockWarps];
  SHOAL_SHARED float sums[kBlockWarps];
  const auto [row, part, begin, end] = PartOf(args, tiling, BlockX());
  const float* logits = LogitsOf(args, row);
  Exponentials mine;
  constexpr int kStep = kBlockThreads * kCount;
  for (int64_t column = begin + ThreadIndex() * kCount; column < end; column += kChunks * kStep) {
    float x[kChunks][kCount];
    LoadLogits<kStep>(logits, column, end, args.softcap, x);
    AddLogits(x, mine);
  }
  const Exponentials of_warp = JoinLanes(mine);
  if (LaneIndex() == 0) {
    largest[WarpIndex()] = of_warp.largest;
    sums[WarpIndex()] = of_warp.sum;
  }
  SyncBlock();
  if (ThreadIndex() == 0) {
    Exponentials all = of_warp;
    for (int warp = 1; warp < kBlockWarps; ++warp) {
      all = Join(all, {largest[warp], sums[warp]});
    }
    scratch.parts[row * tiling.parts + part] = all;
    if (part == 0) {
      scratch.chosen[row] = LogitOf(args, row);
    }
  }
}

// One block adds the rows' losses in double: each thread's in order, then the threads' pairwise.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 1)
    LossKernel(CrossEntropyArgs args, LongRowTiling tiling, Scratch scratch) {
  SHOAL_SHARED double shared[kBlockThreads];
  double loss = 0;
  for (int64_t row = ThreadIndex(); row < args.rows.count; row += kBlockThreads) {
    const Exponentials all = JoinParts(scratch.parts + row * tiling.parts, tiling.parts);
    const float log_sum = all.largest + Log(all.sum);
    const double of_row = static_cast<double>(log_sum) - static_cast<double>(scratch.chosen[row]);
    loss += static_cast<double>(args.rows.weights[row]) * of_row;
    if (args.loss.log_probabilities != nullptr) {
      args.loss.log_probabilities[row] = static_cast<float>(-of_row);
    }
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
    *args.loss.sum += shared[0];
  }
}

// Also writes the rows after `count`. Goes from the last row to the first: what PartKernel read
// last may still be in the second-level cache.
template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    GradientKernel(CrossEntropyArgs args, LongRowTiling tiling, Scratch scratch) {
  const int64_t last = args.logits.rows * tiling.parts - 1;
  const auto [row, part, begin, end] = PartOf(args, tiling, last - BlockX());
  const bool counts = row < args.rows.count;
  const float* logits = LogitsOf(args, row);
  T* gradients = GradientsOf<T>(args, row);
  RowGradient of_row;
  if (counts) {
    const Exponentials all = JoinParts(scratch.parts + row * tiling.parts, tiling.parts);
    of_row = RowGradientOf(args, row, all);
  }
  constexpr int kStep = kBlockThreads * kCount;
  for (int64_t column = begin + ThreadIndex() * kCount; column < end; column += kChunks * kStep) {
    float x[kChunks][kCount] = {};
    if (counts) {
      LoadLogits<kStep>(logits, column, end, args.softcap, x);
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int64_t at = column + i * kStep;
      if (counts) {
        of_row.Apply(at, x[i]);
      }
      StoreGradients(x[i], gradients, at, end, true);
    }
  }
}

// Rows that fit shared memory have one block each, which reads them once.
constexpr int kRowThreads = 1024;
constexpr int kRowCount = kWide<float>;
// Bytes of shared memory besides the row.
constexpr int64_t kRowOverhead = 1024;
static_assert(kRowThreads == kWarp * kWarp);

// With gradients or for the loss alone: the order of sums is the same. `whole`: gradients of a
// chunk may be stored at once.
template <typename T, bool kGradient>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kRowThreads, 1)
    RowKernel(CrossEntropyArgs args, Scratch scratch, bool whole) {
  SHOAL_SHARED float largest[kWarp];
  SHOAL_SHARED float sums[kWarp];
  constexpr int kStep = kRowThreads * kRowCount;
  const int64_t row = BlockX();
  const int64_t end = args.logits.columns;
  const int64_t first = ThreadIndex() * kRowCount;
  T* gradients = kGradient ? GradientsOf<T>(args, row) : nullptr;
  if (row >= args.rows.count) {
    for (int64_t column = first; column < end; column += kStep) {
      StoreGradients<T, kRowCount>({}, gradients, column, end, whole);
    }
    return;
  }
  const float* logits = LogitsOf(args, row);
  // Read before any thread overwrites it with gradients.
  const float chosen = LogitOf(args, row);
  auto* const kept = reinterpret_cast<Bits128*>(DynamicShared());
  Exponentials mine;
  for (int64_t column = first; column < end; column += kChunks * kStep) {
    float x[kChunks][kRowCount];
    LoadLogits<kStep>(logits, column, end, args.softcap, x);
    if constexpr (kGradient) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (column + i * kStep < end) {
          kept[(column + i * kStep) / kRowCount] = {BitsOf(x[i][0]), BitsOf(x[i][1]),
                                                    BitsOf(x[i][2]), BitsOf(x[i][3])};
        }
      }
    }
    AddLogits(x, mine);
  }
  const Exponentials of_warp = JoinLanes(mine);
  if (LaneIndex() == 0) {
    largest[WarpIndex()] = of_warp.largest;
    sums[WarpIndex()] = of_warp.sum;
  }
  SyncBlock();
  const Exponentials all = JoinLanes({largest[LaneIndex()], sums[LaneIndex()]});
  if (ThreadIndex() == 0) {
    scratch.parts[row] = all;
    scratch.chosen[row] = chosen;
  }
  if constexpr (kGradient) {
    const RowGradient of_row = RowGradientOf(args, row, all);
#pragma unroll 4
    for (int64_t column = first; column < end; column += kStep) {
      const Bits128 bits = kept[column / kRowCount];
      float x[kRowCount] = {FloatOf(bits.word[0]), FloatOf(bits.word[1]), FloatOf(bits.word[2]),
                            FloatOf(bits.word[3])};
      of_row.Apply(column, x);
      StoreGradients(x, gradients, column, end, whole);
    }
  }
}

// Whether chunks of `count` elements of all rows start at multiples of their size; the last chunk
// of a row may have fewer.
bool Chunked(const ConstView& view, int64_t count) {
  return view.stride % count == 0 && Takes(view.data, count * SizeOf(view.element));
}

// Whether to use one block per row: too few rows leave most multiprocessors idle, short ones most
// threads.
bool HasBlockPerRow(const CrossEntropyArgs& args) {
  constexpr int64_t kLeastRows = kManyBlocks / 8;
  return args.rows.count >= kLeastRows && args.logits.columns >= kRowThreads * kRowCount &&
         args.logits.columns * SizeOf(Element::kF32) + kRowOverhead <= args.shared_bytes &&
         Chunked(args.logits, kRowCount);
}

cudaError_t ByRows(cudaStream_t stream, const CrossEntropyArgs& args, const Scratch& scratch) {
  if (args.d_logits.data == nullptr) {
    return Launch(stream, {.x = args.rows.count}, kRowThreads, 0, RowKernel<float, false>, args,
                  scratch, false);
  }
  return WithElement(args.d_logits.element, [&]<typename T>() {
    return Launch(stream, {.x = args.logits.rows}, kRowThreads,
                  DivideUp(args.logits.columns, kRowCount) * static_cast<int64_t>(sizeof(Bits128)),
                  RowKernel<T, true>, args, scratch, Chunked(args.d_logits, kRowCount));
  });
}

cudaError_t PartGradients(cudaStream_t stream, const CrossEntropyArgs& args,
                          const LongRowTiling& tiling, const Scratch& scratch) {
  constexpr int kCount = kWide<float>;
  return WithElement(args.d_logits.element, [&]<typename T>() {
    const auto launch = [&](auto kernel) {
      return Launch(stream, {.x = args.logits.rows * tiling.parts}, kBlockThreads, 0, kernel, args,
                    tiling, scratch);
    };
    return Chunked(args.logits, kCount) && Chunked(args.d_logits, kCount)
               ? launch(GradientKernel<T, kCount>)
               : launch(GradientKernel<T, 1>);
  });
}

}  // namespace

int64_t CrossEntropyScratch(int64_t count, int64_t columns) {
  const LongRowTiling tiling = TileLongRows(count, columns);
  return count * (tiling.parts * static_cast<int64_t>(sizeof(Exponentials)) +
                  static_cast<int64_t>(sizeof(float)));
}

cudaError_t SoftmaxCrossEntropy(cudaStream_t stream, const CrossEntropyArgs& args, void* scratch) {
  const bool by_rows = HasBlockPerRow(args);
  const LongRowTiling tiling = by_rows ? LongRowTiling{1, args.logits.columns}
                                       : TileLongRows(args.rows.count, args.logits.columns);
  auto* const parts = static_cast<Exponentials*>(scratch);
  const Scratch pieces = {parts, reinterpret_cast<float*>(parts + args.rows.count * tiling.parts)};
  // kCount decides the order of sums, so it is the same with and without a gradient.
  constexpr int kCount = kWide<float>;
  cudaError_t error = cudaSuccess;
  if (by_rows) {
    error = ByRows(stream, args, pieces);
  } else {
    error = Launch(stream, {.x = args.rows.count * tiling.parts}, kBlockThreads, 0,
                   Chunked(args.logits, kCount) ? PartKernel<kCount> : PartKernel<1>, args, tiling,
                   pieces);
  }
  if (error == cudaSuccess) {
    error = Launch(stream, {}, kBlockThreads, 0, LossKernel, args, tiling, pieces);
  }
  if (error != cudaSuccess || by_rows || args.d_logits.data == nullptr) {
    return error;
  }
  return PartGradients(stream, args, tiling, pieces);
}

}  // namespace shoal::worker::cuda
