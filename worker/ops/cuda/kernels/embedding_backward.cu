#include <cmath>

#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/embedding_backward.h"
#include "worker/ops/cuda/kernels/token_sort.h"

namespace shoal::worker::cuda {
namespace {

// Columns per chunk, chunks per lane, and rows of one id that it loads at once: more if the id
// occurs often, because its warps then run longest.
constexpr int kColumns = 4;
constexpr int kChunks = 2;
constexpr int kRows = 4;
template <typename T>
constexpr int kManyRows = 16 / static_cast<int>(sizeof(T));

SHOAL_DEVICE int WarpCount(bool mine) {
  int count = mine ? 1 : 0;
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    count += ShuffleXor(count, distance);
  }
  return count;
}

// sums += scale times the lane's chunks of the `rows` rows from lane `first`'s position on, at
// most kRowsAtOnce. Requests all before it adds the first; adds in order. `columns`: where chunks
// start.
template <typename T, int kCount, int kRowsAtOnce>
SHOAL_DEVICE void AddRows(const ConstView& d_out, int32_t position, int first, int rows,
                          float scale, const int64_t (&columns)[kChunks],
                          float (&sums)[kChunks][kCount]) {
  Packed<T, kCount> added[kRowsAtOnce][kChunks];
#pragma unroll
  for (int i = 0; i < kRowsAtOnce; ++i) {
    // After the last row, reads the first again.
    const int64_t start = Shuffle(position, first + (i < rows ? i : 0)) * d_out.stride;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      added[i][chunk] = LoadPacked<T, kCount>(d_out.data, start + columns[chunk]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsAtOnce; ++i) {
    if (i < rows) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        float values[kCount];
        Unpack(added[i][chunk], values);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          sums[chunk][j] = fmaf(scale, values[j], sums[chunk][j]);
        }
      }
    }
  }
}

// A warp for each place in the sorted order and each 32 x kChunks chunks of columns. The warp at
// the first place of an id does the work for all, the others return.
template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 3)
    AddRowsKernel(SortedTokens tokens, int64_t count, ConstView d_out, float scale, View d_table,
                  uint32_t column_blocks) {
  const auto warp = static_cast<uint32_t>(BlockX()) * kBlockWarps + WarpIndex();
  const int64_t place = warp / column_blocks;
  if (place >= count) {
    return;
  }
  int64_t at = place + LaneIndex();
  int32_t id_here = at < count ? tokens.ids[at] : -1;
  int32_t position = at < count ? tokens.positions[at] : 0;
  const int32_t id_before = place > 0 ? tokens.ids[place - 1] : -1;
  const int32_t id = Shuffle(id_here, 0);
  if (id == id_before) {
    return;
  }
  // The lane's chunks; neighbouring lanes have neighbouring ones. Past the columns it reads the
  // row's first chunk and stores nothing.
  int64_t columns[kChunks];
  bool has[kChunks];
  float sums[kChunks][kCount] = {};
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int64_t column =
        (int64_t{warp % column_blocks} * kChunks * kWarp + chunk * kWarp + LaneIndex()) * kCount;
    has[chunk] = column < d_out.columns;
    columns[chunk] = has[chunk] ? column : 0;
    if (has[chunk]) {
      LoadFloats<float>(d_table.data, id * d_table.stride + columns[chunk], sums[chunk]);
    }
  }
  for (;;) {
    // Equal ids are neighbours, so the first lanes have this id.
    const int rows = WarpCount(id_here == id);
    int first = 0;
#pragma unroll 1
    for (; first + kManyRows<T> <= rows; first += kManyRows<T>) {
      AddRows<T, kCount, kManyRows<T>>(d_out, position, first, kManyRows<T>, scale, columns, sums);
    }
#pragma unroll 1
    for (; first < rows; first += kRows) {
      AddRows<T, kCount, kRows>(d_out, position, first, rows - first, scale, columns, sums);
    }
    if (rows < kWarp) {
      break;
    }
    at += kWarp;
    id_here = at < count ? tokens.ids[at] : -1;
    position = at < count ? tokens.positions[at] : 0;
  }
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    if (has[chunk]) {
      StoreFloats<float>(sums[chunk], d_table.data, id * d_table.stride + columns[chunk]);
    }
  }
}

}  // namespace

int64_t EmbeddingBackwardScratch(int64_t count) { return TokenSortScratch(count); }

cudaError_t EmbeddingBackward(cudaStream_t stream, const int32_t* tokens, int64_t count,
                              const ConstView& d_out, float scale, const View& d_table,
                              void* scratch) {
  SortedTokens sorted;
  const cudaError_t error = SortTokens(stream, tokens, count, d_table.rows, scratch, &sorted);
  if (error != cudaSuccess) {
    return error;
  }
  return WithElement(d_out.element, [&]<typename T>() {
    return WithCount<kColumns>(
        [&](auto columns) {
          const int64_t column_blocks = DivideUp(d_out.columns, kWarp * kChunks * columns);
          const int64_t warps = count * column_blocks;
          if (warps > INT32_MAX) {
            return cudaErrorInvalidConfiguration;
          }
          return Launch(stream, {.x = DivideUp(warps, kBlockWarps)}, kBlockThreads, 0,
                        AddRowsKernel<T, columns>, sorted, count, d_out, scale, d_table,
                        static_cast<uint32_t>(column_blocks));
        },
        d_out, ConstView(d_table));
  });
}

}  // namespace shoal::worker::cuda
