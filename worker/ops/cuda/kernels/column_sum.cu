#include "worker/ops/cuda/kernels/column_sum.h"
#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"

namespace shoal::worker::cuda {
namespace {

// Rows whose chunks a thread loads at once.
constexpr int kRows = 4;

// Rows of fp32 that are summed in one step.
constexpr int64_t kFewRows = 512;

// Block (x, y) sums 32 chunks of columns of slab y. Warp w takes rows w, w + 8, ... of the slab,
// lane l the l-th chunk; the warps' sums are added in order.
template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 3)
    SlabKernel(ConstView x, int64_t rows_per_slab, float* partials) {
  SHOAL_SHARED float shared[kBlockWarps][kWarp * kCount];
  const int64_t column = (int64_t{BlockX()} * kWarp + LaneIndex()) * kCount;
  const int64_t first = BlockY() * rows_per_slab;
  const int64_t last = first + rows_per_slab < x.rows ? first + rows_per_slab : x.rows;
  float sums[kCount] = {};
  if (column < x.columns) {
    for (int64_t start = first + WarpIndex(); start < last; start += kRows * kBlockWarps) {
      Packed<T, kCount> loaded[kRows] = {};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t row = start + i * kBlockWarps;
        if (row < last) {
          loaded[i] = LoadPacked<T, kCount>(x.data, row * x.stride + column);
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float values[kCount];
        Unpack(loaded[i], values);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          sums[j] += values[j];
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    // Neighbouring lanes write to neighbouring banks.
    shared[WarpIndex()][j * kWarp + LaneIndex()] = sums[j];
  }
  SyncBlock();
  for (int at = ThreadIndex(); at < kWarp * kCount; at += kBlockThreads) {
    float sum = 0;
    for (int warp = 0; warp < kBlockWarps; ++warp) {
      sum += shared[warp][at % kCount * kWarp + at / kCount];
    }
    const int64_t to = int64_t{BlockX()} * kWarp * kCount + at;
    if (to < x.columns) {
      partials[BlockY() * x.columns + to] = sum;
    }
  }
}

// A block takes 32 columns; warp w takes slabs w, w + 8, ..., and the warps' sums are added in
// order.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    AddPartialsKernel(const float* partials, int64_t slabs, int64_t columns, float* sums) {
  SHOAL_SHARED float shared[kBlockWarps][kWarp];
  constexpr int kSlabs = 8;
  const int64_t column = int64_t{BlockX()} * kWarp + LaneIndex();
  // Loads the destination first, to hide its latency.
  const bool adds = WarpIndex() == 0 && column < columns;
  const float before = adds ? sums[column] : 0.0f;
  float sum = 0;
  if (column < columns) {
    for (int64_t start = WarpIndex(); start < slabs; start += kSlabs * kBlockWarps) {
      float loaded[kSlabs] = {};
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) {
        const int64_t slab = start + i * kBlockWarps;
        if (slab < slabs) {
          loaded[i] = partials[slab * columns + column];
        }
      }
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) {
        sum += loaded[i];
      }
    }
  }
  shared[WarpIndex()][LaneIndex()] = sum;
  SyncBlock();
  if (adds) {
    float total = 0;
    for (int warp = 0; warp < kBlockWarps; ++warp) {
      total += shared[warp][LaneIndex()];
    }
    sums[column] = before + total;
  }
}

cudaError_t AddPartials(cudaStream_t stream, const float* partials, int64_t slabs, int64_t columns,
                        float* sums) {
  return Launch(stream, {.x = DivideUp(columns, kWarp)}, kBlockThreads, 0, AddPartialsKernel,
                partials, slabs, columns, sums);
}

}  // namespace

int64_t ColumnSumPartials(Element element, int64_t rows, int64_t columns) {
  // Wide chunks make fewer blocks of columns, so more slabs.
  const int64_t wide = 16 / SizeOf(element);
  return TileColumnSum(rows, DivideUp(columns, wide)).slabs * columns;
}

cudaError_t AddColumnSums(cudaStream_t stream, const ConstView& x, float* sums, float* partials) {
  if (x.element == Element::kF32 && x.stride == x.columns && x.rows <= kFewRows) {
    return AddPartials(stream, static_cast<const float*>(x.data), x.rows, x.columns, sums);
  }
  return WithElement(x.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto count) {
          const ColumnSumTiling tiling = TileColumnSum(x.rows, DivideUp(x.columns, count));
          const cudaError_t error =
              Launch(stream, {.x = tiling.column_blocks, .y = tiling.slabs}, kBlockThreads, 0,
                     SlabKernel<T, count>, x, tiling.rows_per_slab, partials);
          return error == cudaSuccess ? AddPartials(stream, partials, tiling.slabs, x.columns, sums)
                                      : error;
        },
        x);
  });
}

}  // namespace shoal::worker::cuda
