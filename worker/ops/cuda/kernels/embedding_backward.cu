#include "worker/ops/cuda/kernels/dispatch.h"
#include "worker/ops/cuda/kernels/elements.h"
#include "worker/ops/cuda/kernels/embedding_backward.h"
#include "worker/ops/cuda/kernels/token_sort.h"

namespace shoal::worker::cuda {
namespace {

// Columns of a chunk, chunks that a lane adds up, and rows of one id whose chunks it has in flight.
constexpr int kColumns = 4;
constexpr int kChunks = 2;
constexpr int kRows = 4;

SHOAL_DEVICE int WarpCount(bool mine) {
  int count = mine ? 1 : 0;
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    count += ShuffleXor(count, distance);
  }
  return count;
}

// A warp for each place in the sorted order and each 32 x kChunks chunks of columns. The first
// place of an id does the work for all of them, the others return.
template <typename T, int kCount>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 3)
    AddRowsKernel(SortedTokens tokens, int64_t count, ConstView d_out, View d_table,
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
  // The lane's chunks: neighbouring lanes have neighbouring ones.
  int64_t columns[kChunks];
  float sums[kChunks][kCount] = {};
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    columns[chunk] =
        (int64_t{warp % column_blocks} * kChunks * kWarp + chunk * kWarp + LaneIndex()) * kCount;
    if (columns[chunk] < d_out.columns) {
      LoadFloats<float>(d_table.data, id * d_table.stride + columns[chunk], sums[chunk]);
    }
  }
  for (;;) {
    // Equal ids are neighbours, so those of this one are the first lanes'.
    const int rows = WarpCount(id_here == id);
    for (int first = 0; first < rows; first += kRows) {
      Packed<T, kCount> added[kRows][kChunks];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t row = Shuffle(position, (first + i) % kWarp);
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          if (first + i < rows && columns[chunk] < d_out.columns) {
            added[i][chunk] =
                LoadPacked<T, kCount>(d_out.data, row * d_out.stride + columns[chunk]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          if (first + i < rows && columns[chunk] < d_out.columns) {
            float values[kCount];
            Unpack(added[i][chunk], values);
#pragma unroll
            for (int j = 0; j < kCount; ++j) {
              sums[chunk][j] += values[j];
            }
          }
        }
      }
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
    if (columns[chunk] < d_out.columns) {
      StoreFloats<float>(sums[chunk], d_table.data, id * d_table.stride + columns[chunk]);
    }
  }
}

}  // namespace

int64_t EmbeddingBackwardScratch(int64_t count) { return TokenSortScratch(count); }

cudaError_t EmbeddingBackward(cudaStream_t stream, const int32_t* tokens, int64_t count,
                              const ConstView& d_out, const View& d_table, void* scratch) {
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
                        AddRowsKernel<T, columns>, sorted, count, d_out, d_table,
                        static_cast<uint32_t>(column_blocks));
        },
        d_out, ConstView(d_table));
  });
}

}  // namespace shoal::worker::cuda
