#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/rms_norm.h"
#include "worker/ops/cuda/kernels/row_reduce.h"

namespace shoal::worker::cuda {
namespace {

SHOAL_DEVICE float InverseRms(float squares, int64_t columns, float epsilon) {
  return InverseSquareRoot(squares / static_cast<float>(columns) + epsilon);
}

// A row a group of `warps` warps, kept in registers from the one read to the write.
template <typename T, int kChunks>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    ForwardKernel(RmsNormForwardArgs args, int warps) {
  constexpr int kCount = kWide<T>;
  SHOAL_SHARED float shared[kBlockWarps];
  const RowGroup group = GroupOf(warps);
  const int64_t row = int64_t{BlockX()} * (kBlockWarps / warps) + group.row;
  const int64_t columns = args.x.columns;
  const bool valid = row < args.x.rows;

  Packed<T, kCount> chunks[kChunks] = {};
  Packed<T, kCount> deltas[kChunks] = {};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
    if (valid && column < columns) {
      chunks[i] = LoadPacked<T, kCount>(args.x.data, row * args.x.stride + column);
      if (args.delta != nullptr) {
        deltas[i] = LoadPacked<T, kCount>(args.delta, row * args.delta_stride + column);
      }
    }
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
    if (valid && column < columns) {
      float x[kCount];
      Unpack(chunks[i], x);
      if (args.delta != nullptr) {
        float delta[kCount];
        Unpack(deltas[i], delta);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          x[j] += delta[j];
        }
        chunks[i] = Pack<T>(x);
        StorePacked<T>(chunks[i], args.sum, row * args.sum_stride + column);
        Unpack(chunks[i], x);
      }
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        squares += x[j] * x[j];
      }
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
        x[j] = x[j] * inverse * weight[j];
      }
      StoreFloats<T>(x, args.y.data, row * args.y.stride + column);
    }
  }
}

// Any row: a block each, read twice, element by element.
template <typename T>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4) ForwardAnyKernel(RmsNormForwardArgs args) {
  SHOAL_SHARED float shared[kBlockWarps];
  const RowGroup group = GroupOf(kBlockWarps);
  const int64_t row = BlockX();
  const int64_t columns = args.x.columns;
  const T* x = static_cast<const T*>(args.x.data) + row * args.x.stride;
  if (args.delta != nullptr) {
    const T* delta = static_cast<const T*>(args.delta) + row * args.delta_stride;
    T* sum = static_cast<T*>(args.sum) + row * args.sum_stride;
    for (int64_t column = group.thread; column < columns; column += group.threads) {
      sum[column] = FromFloat<T>(ToFloat(x[column]) + ToFloat(delta[column]));
    }
    x = sum;
  }
  // A thread reads what it wrote itself.
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
  T* y = static_cast<T*>(args.y.data) + row * args.y.stride;
  for (int64_t column = group.thread; column < columns; column += group.threads) {
    y[column] = FromFloat<T>(ToFloat(x[column]) * inverse * ToFloat(weight[column]));
  }
}

// d_x = residual + r d_y w - x r^3 mean(d_y w x) with r = inverse_rms.
template <typename T, int kChunks>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 2)
    BackwardKernel(RmsNormBackwardArgs args, int warps) {
  constexpr int kCount = kWide<T>;
  SHOAL_SHARED float shared[kBlockWarps];
  const RowGroup group = GroupOf(warps);
  const int64_t row = int64_t{BlockX()} * (kBlockWarps / warps) + group.row;
  const int64_t columns = args.x.columns;
  const bool valid = row < args.x.rows;

  Packed<T, kCount> gradients[kChunks] = {};
  Packed<T, kCount> chunks[kChunks] = {};
  Packed<T, kCount> weights[kChunks] = {};
  Packed<T, kCount> residuals[kChunks] = {};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
    if (valid && column < columns) {
      gradients[i] = LoadPacked<T, kCount>(args.d_y.data, row * args.d_y.stride + column);
      chunks[i] = LoadPacked<T, kCount>(args.x.data, row * args.x.stride + column);
      weights[i] = LoadPacked<T, kCount>(args.weight, column);
      if (args.residual != nullptr) {
        residuals[i] = LoadPacked<T, kCount>(args.residual, row * args.residual_stride + column);
      }
    }
  }
  float dot = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
    if (valid && column < columns) {
      float d_y[kCount];
      float x[kCount];
      float weight[kCount];
      Unpack(gradients[i], d_y);
      Unpack(chunks[i], x);
      Unpack(weights[i], weight);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        dot += d_y[j] * weight[j] * x[j];
      }
    }
  }
  dot = GroupSum(dot, group, shared);
  if (!valid) {
    return;
  }
  const float inverse = args.inverse_rms[row];
  const float scale = dot / static_cast<float>(columns) * inverse * inverse * inverse;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t column = int64_t{group.thread + i * group.threads} * kCount;
    if (column < columns) {
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
        result[j] += d_y[j] * weight[j] * inverse - x[j] * scale;
      }
      StoreFloats<T>(result, args.d_x.data, row * args.d_x.stride + column);
    }
  }
}

template <typename T>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4) BackwardAnyKernel(RmsNormBackwardArgs args) {
  SHOAL_SHARED float shared[kBlockWarps];
  const RowGroup group = GroupOf(kBlockWarps);
  const int64_t row = BlockX();
  const int64_t columns = args.x.columns;
  const T* d_y = static_cast<const T*>(args.d_y.data) + row * args.d_y.stride;
  const T* x = static_cast<const T*>(args.x.data) + row * args.x.stride;
  const T* weight = static_cast<const T*>(args.weight);
  float dot = 0;
  for (int64_t column = group.thread; column < columns; column += group.threads) {
    dot += ToFloat(d_y[column]) * ToFloat(weight[column]) * ToFloat(x[column]);
  }
  dot = GroupSum(dot, group, shared);
  const float inverse = args.inverse_rms[row];
  const float scale = dot / static_cast<float>(columns) * inverse * inverse * inverse;
  const T* residual = args.residual == nullptr
                          ? nullptr
                          : static_cast<const T*>(args.residual) + row * args.residual_stride;
  T* d_x = static_cast<T*>(args.d_x.data) + row * args.d_x.stride;
  for (int64_t column = group.thread; column < columns; column += group.threads) {
    const float added = residual == nullptr ? 0.0f : ToFloat(residual[column]);
    d_x[column] = FromFloat<T>(added + (ToFloat(d_y[column]) * ToFloat(weight[column]) * inverse -
                                        ToFloat(x[column]) * scale));
  }
}

// launch(chunks per lane) as the tiling says.
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
    const auto like_x = [&](const void* data, int64_t stride) {
      return ConstView{data, x.element, x.rows, x.columns, stride};
    };
    const RowTiling tiling = TileRow(DivideUp(x.columns, kWide<T>));
    const bool aligned = Takes(x, kWide<T>) && Takes(args.y, kWide<T>) &&
                         Takes(like_x(args.delta, args.delta_stride), kWide<T>) &&
                         Takes(like_x(args.sum, args.sum_stride), kWide<T>) &&
                         Takes(args.weight, 16);
    if (!aligned || tiling.warps == 0) {
      return Launch(stream, {.x = x.rows}, kBlockThreads, 0, ForwardAnyKernel<T>, args);
    }
    return WithChunks(tiling, [&](auto chunks) {
      return Launch(stream, {.x = DivideUp(x.rows, tiling.rows_per_block())}, kBlockThreads, 0,
                    ForwardKernel<T, chunks>, args, tiling.warps);
    });
  });
}

cudaError_t RmsNormBackwardInput(cudaStream_t stream, const RmsNormBackwardArgs& args) {
  const ConstView& x = args.x;
  return WithElement(x.element, [&]<typename T>() {
    const RowTiling tiling = TileRow(DivideUp(x.columns, kWide<T>));
    const ConstView residual = {args.residual, x.element, x.rows, x.columns, args.residual_stride};
    const bool aligned = Takes(x, kWide<T>) && Takes(args.d_y, kWide<T>) &&
                         Takes(args.d_x, kWide<T>) && Takes(residual, kWide<T>) &&
                         Takes(args.weight, 16);
    if (!aligned || tiling.warps == 0) {
      return Launch(stream, {.x = x.rows}, kBlockThreads, 0, BackwardAnyKernel<T>, args);
    }
    return WithChunks(tiling, [&](auto chunks) {
      return Launch(stream, {.x = DivideUp(x.rows, tiling.rows_per_block())}, kBlockThreads, 0,
                    BackwardKernel<T, chunks>, args, tiling.warps);
    });
  });
}

}  // namespace shoal::worker::cuda
