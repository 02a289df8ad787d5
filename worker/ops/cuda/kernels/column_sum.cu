#include "worker/ops/cuda/kernels/column_sum.h"
#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"

namespace shoal::worker::cuda {
namespace {

// Rows whose chunks a thread has in flight.
constexpr int kRows = 4;

// Block (x, y): 32 chunks of columns of slab y. Warp w takes rows w, w + 8, ... of the slab, lane l
// the l-th chunk; the warps' sums are added in order. `x` is read where kWeighted.
template <typename T, int kCount, bool kWeighted>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 3)
    SlabKernel(ConstView d_y, ConstView x, const float* inverse_rms, int64_t rows_per_slab,
               float* partials) {
  SHOAL_SHARED float shared[kBlockWarps][kWarp * kCount];
  const int64_t column = (int64_t{BlockX()} * kWarp + LaneIndex()) * kCount;
  const int64_t first = BlockY() * rows_per_slab;
  const int64_t last = first + rows_per_slab < d_y.rows ? first + rows_per_slab : d_y.rows;
  float sums[kCount] = {};
  if (column < d_y.columns) {
    for (int64_t start = first + WarpIndex(); start < last; start += kRows * kBlockWarps) {
      Packed<T, kCount> gradients[kRows] = {};
      Packed<T, kCount> factors[kRows] = {};
      float inverse[kRows] = {};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t row = start + i * kBlockWarps;
        if (row < last) {
          gradients[i] = LoadPacked<T, kCount>(d_y.data, row * d_y.stride + column);
          if constexpr (kWeighted) {
            factors[i] = LoadPacked<T, kCount>(x.data, row * x.stride + column);
            inverse[i] = inverse_rms[row];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float d[kCount];
        Unpack(gradients[i], d);
        if constexpr (kWeighted) {
          float factor[kCount];
          Unpack(factors[i], factor);
#pragma unroll
          for (int j = 0; j < kCount; ++j) {
            sums[j] += d[j] * inverse[i] * factor[j];
          }
        } else {
#pragma unroll
          for (int j = 0; j < kCount; ++j) {
            sums[j] += d[j];
          }
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
    if (to < d_y.columns) {
      partials[BlockY() * d_y.columns + to] = sum;
    }
  }
}

// 32 columns a block; warp w takes slabs w, w + 8, ..., and the warps' sums are added in order.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    AddPartialsKernel(const float* partials, int64_t slabs, int64_t columns, float* sums) {
  SHOAL_SHARED float shared[kBlockWarps][kWarp];
  constexpr int kSlabs = 8;
  const int64_t column = int64_t{BlockX()} * kWarp + LaneIndex();
  // What is added to is on its way before anything else.
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

template <typename T, int kCount, bool kWeighted>
cudaError_t AddColumns(cudaStream_t stream, const ConstView& d_y, const ConstView& x,
                       const float* inverse_rms, float* sums, float* partials) {
  const ColumnSumTiling tiling = TileColumnSum(d_y.rows, DivideUp(d_y.columns, kCount));
  const cudaError_t error =
      Launch(stream, {.x = tiling.column_blocks, .y = tiling.slabs}, kBlockThreads, 0,
             SlabKernel<T, kCount, kWeighted>, d_y, x, inverse_rms, tiling.rows_per_slab, partials);
  if (error != cudaSuccess) {
    return error;
  }
  return Launch(stream, {.x = DivideUp(d_y.columns, kWarp)}, kBlockThreads, 0, AddPartialsKernel,
                static_cast<const float*>(partials), tiling.slabs, d_y.columns, sums);
}

}  // namespace

int64_t ColumnSumPartials(Element element, int64_t rows, int64_t columns) {
  // Wide chunks make fewer blocks of columns, so more slabs.
  const int64_t wide = 16 / SizeOf(element);
  return TileColumnSum(rows, DivideUp(columns, wide)).slabs * columns;
}

cudaError_t BiasBackward(cudaStream_t stream, const ConstView& d_y, float* d_bias,
                         float* partials) {
  return WithElement(d_y.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto count) {
          return AddColumns<T, count, false>(stream, d_y, d_y, nullptr, d_bias, partials);
        },
        d_y);
  });
}

cudaError_t RmsNormBackwardWeight(cudaStream_t stream, const ConstView& d_y, const ConstView& x,
                                  const float* inverse_rms, float* d_weight, float* partials) {
  return WithElement(d_y.element, [&]<typename T>() {
    return WithCount<kWide<T>>(
        [&](auto count) {
          return AddColumns<T, count, true>(stream, d_y, x, inverse_rms, d_weight, partials);
        },
        d_y, x);
  });
}

}  // namespace shoal::worker::cuda
