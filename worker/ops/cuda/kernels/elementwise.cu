#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/elementwise.h"

namespace shoal::worker::cuda {
namespace {

// Rows whose chunks a thread loads at once.
constexpr int kRows = 4;

template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    AddBiasKernel(const void* bias, View y, Tiling tiling) {
  const TilePosition at = PositionIn<kRows>(tiling);
  const int64_t column = at.chunk * kCount;
  if (column >= y.columns) {
    return;
  }
  Packed<T, kCount> rows[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < y.rows) {
      rows[i] = LoadPacked<T, kCount>(y.data, row * y.stride + column);
    }
  }
  float added[kCount];
  LoadFloats<T>(bias, column, added);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < y.rows) {
      float x[kCount];
      Unpack(rows[i], x);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        x[j] += added[j];
      }
      StoreFloats<T>(x, y.data, row * y.stride + column);
    }
  }
}

template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    ScaleKernel(float factor, View x, Tiling tiling) {
  const TilePosition at = PositionIn<kRows>(tiling);
  const int64_t column = at.chunk * kCount;
  if (column >= x.columns) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < x.rows) {
      float values[kCount];
      LoadFloats<T>(x.data, row * x.stride + column, values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        values[j] *= factor;
      }
      StoreFloats<T>(values, x.data, row * x.stride + column);
    }
  }
}

template <typename From, typename To, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    ConvertKernel(ConstView in, View out, Tiling tiling) {
  const TilePosition at = PositionIn<kRows>(tiling);
  const int64_t column = at.chunk * kCount;
  if (column >= out.columns) {
    return;
  }
  Packed<From, kCount> rows[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < out.rows) {
      rows[i] = LoadPacked<From, kCount>(in.data, row * in.stride + column);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < out.rows) {
      float x[kCount];
      Unpack(rows[i], x);
      StoreFloats<To>(x, out.data, row * out.stride + column);
    }
  }
}

template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4) ZeroKernel(View out, Tiling tiling) {
  const TilePosition at = PositionIn<kRows>(tiling);
  const int64_t column = at.chunk * kCount;
  if (column >= out.columns) {
    return;
  }
  const float zeros[kCount] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < out.rows) {
      StoreFloats<T>(zeros, out.data, row * out.stride + column);
    }
  }
}

}  // namespace

cudaError_t AddBias(cudaStream_t stream, const void* bias, const View& y) {
  return WithElement(y.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto count) {
          const Tiling tiling = TileMatrix(y.rows, y.columns / count, kRows);
          return Launch(stream, {.x = tiling.blocks()}, kBlockThreads, 0, AddBiasKernel<T, count>,
                        bias, y, tiling);
        },
        ConstView(y), ConstView{bias, y.element, 1, y.columns, y.columns});
  });
}

cudaError_t Scale(cudaStream_t stream, float factor, const View& x) {
  return WithElement(x.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto count) {
          const Tiling tiling = TileMatrix(x.rows, x.columns / count, kRows);
          return Launch(stream, {.x = tiling.blocks()}, kBlockThreads, 0, ScaleKernel<T, count>,
                        factor, x, tiling);
        },
        ConstView(x));
  });
}

cudaError_t Convert(cudaStream_t stream, const ConstView& in, const View& out) {
  return WithElement(in.element, [&]<typename From>() {
    return WithElement(out.element, [&]<typename To>() {
      // The wider of the two types is accessed 16 bytes at a time.
      constexpr int kCount = kWide<From> < kWide<To> ? kWide<From> : kWide<To>;
      return WithCount<kCount>(
          [&](auto count) {
            const Tiling tiling = TileMatrix(out.rows, out.columns / count, kRows);
            return Launch(stream, {.x = tiling.blocks()}, kBlockThreads, 0,
                          ConvertKernel<From, To, count>, in, out, tiling);
          },
          in, ConstView(out));
    });
  });
}

cudaError_t Zero(cudaStream_t stream, const View& out) {
  return WithElement(out.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto count) {
          const Tiling tiling = TileMatrix(out.rows, out.columns / count, kRows);
          return Launch(stream, {.x = tiling.blocks()}, kBlockThreads, 0, ZeroKernel<T, count>, out,
                        tiling);
        },
        ConstView(out));
  });
}

}  // namespace shoal::worker::cuda
