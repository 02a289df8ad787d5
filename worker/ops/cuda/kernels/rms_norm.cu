#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/rms_norm.h"
#include "worker/ops/cuda/kernels/row_reduce.h"

namespace shoal::worker::cuda {
namespace {

// Where a row begins that may be part of a longer one: that one's number, and a column of it.
struct Place {
  int64_t row;
  int64_t column;

  SHOAL_DEVICE int64_t At(int64_t stride) const { return row * stride + column; }
};
SHOAL_DEVICE Place PlaceOf(int64_t row, int64_t parts, int64_t columns) {
  return parts == 1 ? Place{row, 0} : Place{row / parts, row % parts * columns};
}

SHOAL_DEVICE float InverseRms(float squares, int64_t columns, float epsilon) {
  return InverseSquareRoot(squares / static_cast<float>(columns) + epsilon);
}

// `warps` warps take a row, which registers hold from its only read to its write.
template <typename T, int kChunks>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    ForwardKernel(RmsNormForwardArgs args, int warps) {
  constexpr int kCount = kWide<T>;
  SHOAL_SHARED float shared[kBlockWarps];
  const RowGroup group = GroupOf(warps);
  const int64_t row = int64_t{BlockX()} * (kBlockWarps / warps) + group.row;
  const int64_t columns = args.x.columns;
  const Place place = PlaceOf(row, args.parts, columns);
  const bool valid = row < args.x.rows;

  Packed<T, kCount> chunks[kChunks] = {};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
    if (valid && column < columns) {
      chunks[i] = LoadPacked<T, kCount>(args.x.data, place.At(args.x.stride) + column);
    }
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    float x[kCount];
    Unpack(chunks[i], x);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      squares += x[j] * x[j];
    }
  }
  Packed<T, kCount> weights[kChunks] = {};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
    if (column < columns) {
      weights[i] = LoadPacked<T, kCount>(args.weight, column);
    }
  }
  const float inverse = InverseRms(GroupSum(squares, group, shared), columns, args.epsilon);
  if (!valid) {
    return;
  }
  if (group.thread == 0) {
    args.inverse_rms[row] = inverse;
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
    if (column < columns) {
      float x[kCount];
      float weight[kCount];
      Unpack(chunks[i], x);
      Unpack(weights[i], weight);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        x[j] = x[j] * inverse * (weight[j] + args.offset);
      }
      if (args.residual != nullptr) {
        float added[kCount];
        Unpack(LoadPacked<T, kCount>(args.residual, place.At(args.residual_stride) + column),
               added);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          x[j] += added[j];
        }
      }
      StoreFloats<T>(x, args.y.data, place.At(args.y.stride) + column);
    }
  }
}

// Takes any row: one block each, read twice, element by element.
template <typename T>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4) ForwardAnyKernel(RmsNormForwardArgs args) {
  SHOAL_SHARED float shared[kBlockWarps];
  const RowGroup group = GroupOf(kBlockWarps);
  const int64_t row = BlockX();
  const int64_t columns = args.x.columns;
  const Place place = PlaceOf(row, args.parts, columns);
  const T* x = static_cast<const T*>(args.x.data) + place.At(args.x.stride);
  float squares = 0;
  for (int64_t column = group.thread; column < columns; column += group.threads) {
    const float value = ToFloat(x[column]);
    squares += value * value;
  }
  const float inverse = InverseRms(GroupSum(squares, group, shared), columns, args.epsilon);
  if (group.thread == 0) {
    args.inverse_rms[row] = inverse;
  }
  const T* weight = static_cast<const T*>(args.weight);
  const T* residual = args.residual == nullptr
                          ? nullptr
                          : static_cast<const T*>(args.residual) + place.At(args.residual_stride);
  T* y = static_cast<T*>(args.y.data) + place.At(args.y.stride);
  for (int64_t column = group.thread; column < columns; column += group.threads) {
    const float normed = ToFloat(x[column]) * inverse * (ToFloat(weight[column]) + args.offset);
    y[column] = FromFloat<T>(residual == nullptr ? normed : normed + ToFloat(residual[column]));
  }
}

// With r = inverse_rms and w the weight with its offset, computes
// d_x = residual + r d_y w - x r^3 mean(d_y w x), and a partial sum of d_y r x. A block has the
// partial's rows, which its groups of warps take in turn; the groups' sums are added in order.
template <typename T, int kChunks>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 2)
    BackwardKernel(RmsNormBackwardArgs args, int warps) {
  constexpr int kCount = kWide<T>;
  // Two buffers: one group may be at the next row while another still reads the last one's sum.
  SHOAL_SHARED float shared[2][kBlockWarps];
  SHOAL_SHARED float of_groups[kChunks * kCount][kBlockThreads];
  const RowGroup group = GroupOf(warps);
  const int groups = kBlockWarps / warps;
  const int64_t columns = args.x.columns;
  const int64_t first = BlockX() * args.rows_per_partial;
  const int64_t end =
      first + args.rows_per_partial < args.x.rows ? first + args.rows_per_partial : args.x.rows;

  float sums[kChunks][kCount] = {};
  int turn = 0;
  for (int64_t start = first; start < end; start += groups) {
    const int64_t row = start + group.row;
    const Place place = PlaceOf(row, args.parts, columns);
    const bool valid = row < end;
    Packed<T, kCount> gradients[kChunks] = {};
    Packed<T, kCount> chunks[kChunks] = {};
    Packed<T, kCount> weights[kChunks] = {};
    Packed<T, kCount> residuals[kChunks] = {};
    const float inverse = valid ? args.inverse_rms[row] : 0.0f;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
      if (valid && column < columns) {
        gradients[i] = LoadPacked<T, kCount>(args.d_y.data, place.At(args.d_y.stride) + column);
        chunks[i] = LoadPacked<T, kCount>(args.x.data, place.At(args.x.stride) + column);
        weights[i] = LoadPacked<T, kCount>(args.weight, column);
        if (args.residual != nullptr) {
          residuals[i] =
              LoadPacked<T, kCount>(args.residual, place.At(args.residual_stride) + column);
        }
      }
    }
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      float d_y[kCount];
      float x[kCount];
      float weight[kCount];
      Unpack(gradients[i], d_y);
      Unpack(chunks[i], x);
      Unpack(weights[i], weight);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        dot += d_y[j] * (weight[j] + args.offset) * x[j];
        sums[i][j] += d_y[j] * inverse * x[j];
      }
    }
    dot = GroupSum(dot, group, shared[turn]);
    turn = 1 - turn;
    const float scale = dot / static_cast<float>(columns) * inverse * inverse * inverse;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
      if (valid && column < columns) {
        float d_y[kCount];
        float x[kCount];
        float weight[kCount];
        float result[kCount];
        Unpack(gradients[i], d_y);
        Unpack(chunks[i], x);
        Unpack(weights[i], weight);
        Unpack(residuals[i], result);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          result[j] += d_y[j] * (weight[j] + args.offset) * inverse - x[j] * scale;
        }
        StoreFloats<T>(result, args.d_x.data, place.At(args.d_x.stride) + column);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      of_groups[i * kCount + j][ThreadIndex()] = sums[i][j];
    }
  }
  SyncBlock();
  float* const d_weights = args.d_weights + BlockX() * columns;
  for (int chunk = ThreadIndex(); int64_t{chunk} * kCount < columns; chunk += kBlockThreads) {
    const int slot = chunk / group.threads * kCount;
    const int thread = chunk % group.threads;
#pragma unroll
    for (int j = 0; j < kCount; j += 4) {
      float four[4] = {};
      for (int of = 0; of < groups; ++of) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          four[k] += of_groups[slot + j + k][of * group.threads + thread];
        }
      }
      StoreFloats<float>(four, d_weights, int64_t{chunk} * kCount + j);
    }
  }
}

// Takes any rows: a block goes through its partial's rows, each read twice, element by element.
template <typename T>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4) BackwardAnyKernel(RmsNormBackwardArgs args) {
  SHOAL_SHARED float shared[2][kBlockWarps];
  const RowGroup group = GroupOf(kBlockWarps);
  const int64_t columns = args.x.columns;
  const int64_t first = BlockX() * args.rows_per_partial;
  const int64_t end =
      first + args.rows_per_partial < args.x.rows ? first + args.rows_per_partial : args.x.rows;
  const T* weight = static_cast<const T*>(args.weight);
  float* const d_weights = args.d_weights + BlockX() * columns;
  int turn = 0;
  for (int64_t row = first; row < end; ++row) {
    const Place place = PlaceOf(row, args.parts, columns);
    const T* d_y = static_cast<const T*>(args.d_y.data) + place.At(args.d_y.stride);
    const T* x = static_cast<const T*>(args.x.data) + place.At(args.x.stride);
    float dot = 0;
    for (int64_t column = group.thread; column < columns; column += group.threads) {
      dot += ToFloat(d_y[column]) * (ToFloat(weight[column]) + args.offset) * ToFloat(x[column]);
    }
    dot = GroupSum(dot, group, shared[turn]);
    turn = 1 - turn;
    const float inverse = args.inverse_rms[row];
    const float scale = dot / static_cast<float>(columns) * inverse * inverse * inverse;
    const T* residual = args.residual == nullptr
                            ? nullptr
                            : static_cast<const T*>(args.residual) + place.At(args.residual_stride);
    T* d_x = static_cast<T*>(args.d_x.data) + place.At(args.d_x.stride);
    // A thread has the same columns of every row, and adds to its own writes.
    for (int64_t column = group.thread; column < columns; column += group.threads) {
      const float gradient = ToFloat(d_y[column]);
      const float at = ToFloat(x[column]);
      const float added = residual == nullptr ? 0.0f : ToFloat(residual[column]);
      const float before = row == first ? 0.0f : d_weights[column];
      d_weights[column] = before + gradient * inverse * at;
      d_x[column] = FromFloat<T>(
          added + (gradient * (ToFloat(weight[column]) + args.offset) * inverse - at * scale));
    }
  }
}

// Calls launch(chunks per lane) as the tiling says.
template <typename Launcher>
cudaError_t WithChunks(const RowTiling& tiling, const Launcher& launch) {
  switch (tiling.chunks_per_lane) {
    case 1:
      return launch(Constant<1>());
    case 2:
      return launch(Constant<2>());
    default:
      return launch(Constant<kMaxChunksPerLane>());
  }
}

}  // namespace

cudaError_t RmsNormForward(cudaStream_t stream, const RmsNormForwardArgs& args) {
  const ConstView& x = args.x;
  return WithElement(x.element, [&]<typename T>() {
    const RowTiling tiling = TileRow(DivideUp(x.columns, kWide<T>));
    const ConstView residual = {args.residual, x.element, x.rows, x.columns, args.residual_stride};
    const bool aligned = Takes(x, kWide<T>) && Takes(args.y, kWide<T>) &&
                         Takes(residual, kWide<T>) && Takes(args.weight, 16);
    if (!aligned || tiling.warps == 0) {
      return Launch(stream, {.x = x.rows}, kBlockThreads, 0, ForwardAnyKernel<T>, args);
    }
    return WithChunks(tiling, [&](auto chunks) {
      return Launch(stream, {.x = DivideUp(x.rows, tiling.rows_per_block())}, kBlockThreads, 0,
                    ForwardKernel<T, chunks>, args, tiling.warps);
    });
  });
}

cudaError_t RmsNormBackward(cudaStream_t stream, const RmsNormBackwardArgs& args) {
  const ConstView& x = args.x;
  return WithElement(x.element, [&]<typename T>() {
    const RowTiling tiling = TileRow(DivideUp(x.columns, kWide<T>));
    const ConstView residual = {args.residual, x.element, x.rows, x.columns, args.residual_stride};
    const bool aligned = Takes(x, kWide<T>) && Takes(args.d_y, kWide<T>) &&
                         Takes(args.d_x, kWide<T>) && Takes(residual, kWide<T>) &&
                         Takes(args.weight, 16) && Takes(args.d_weights, 16);
    const Grid grid = {.x = DivideUp(x.rows, args.rows_per_partial)};
    if (!aligned || tiling.warps == 0) {
      return Launch(stream, grid, kBlockThreads, 0, BackwardAnyKernel<T>, args);
    }
    return WithChunks(tiling, [&](auto chunks) {
      return Launch(stream, grid, kBlockThreads, 0, BackwardKernel<T, chunks>, args, tiling.warps);
    });
  });
}

}  // namespace shoal::worker::cuda
