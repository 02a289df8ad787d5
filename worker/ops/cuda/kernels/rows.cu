#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/rows.h"

namespace shoal::worker::cuda {
namespace {

// Rows whose chunks a thread loads at once.
constexpr int kRows = 4;

template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    GatherKernel(ConstView in, const int32_t* rows, int64_t count, View out, Tiling tiling) {
  const TilePosition at = PositionIn<kRows>(tiling);
  const int64_t column = at.chunk * kCount;
  if (column >= out.columns) {
    return;
  }
  Packed<T, kCount> chunks[kRows] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < count) {
      chunks[i] = LoadPacked<T, kCount>(in.data, rows[row] * in.stride + column);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < out.rows) {
      StorePacked<T>(chunks[i], out.data, row * out.stride + column);
    }
  }
}

template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    ScatterKernel(ConstView in, const int32_t* rows, int64_t count, View out, Tiling tiling) {
  const TilePosition at = PositionIn<kRows>(tiling);
  const int64_t column = at.chunk * kCount;
  if (column >= out.columns) {
    return;
  }
  Packed<T, kCount> chunks[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < count) {
      chunks[i] = LoadPacked<T, kCount>(in.data, row * in.stride + column);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = at.row + i * at.row_step;
    if (row < count) {
      StorePacked<T>(chunks[i], out.data, rows[row] * out.stride + column);
    }
  }
}

}  // namespace

cudaError_t GatherRows(cudaStream_t stream, const ConstView& in, const int32_t* rows, int64_t count,
                       const View& out) {
  return WithElement(out.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto chunk) {
          const Tiling tiling = TileMatrix(out.rows, out.columns / chunk, kRows);
          return Launch(stream, {.x = tiling.blocks()}, kBlockThreads, 0, GatherKernel<T, chunk>,
                        in, rows, count, out, tiling);
        },
        in, ConstView(out));
  });
}

cudaError_t ScatterRows(cudaStream_t stream, const ConstView& in, const int32_t* rows,
                        int64_t count, const View& out) {
  return WithElement(out.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto chunk) {
          const Tiling tiling = TileMatrix(count, out.columns / chunk, kRows);
          return Launch(stream, {.x = tiling.blocks()}, kBlockThreads, 0, ScatterKernel<T, chunk>,
                        in, rows, count, out, tiling);
        },
        in, ConstView(out));
  });
}

}  // namespace shoal::worker::cuda
