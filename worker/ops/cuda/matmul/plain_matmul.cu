// fp32 without tensor cores: a block of 256 threads makes 64x64 of C, each thread 4x4, from slices
// of 16 of the inner dimension in shared memory. For tests and small models; any strides.
#include "core/gpu/kernel/kernel.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/matmul/matmul_kernel.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kTile = 64;
constexpr int kSlice = 16;
constexpr int kThreads = 256;
constexpr int kPerThread = 4;
constexpr int kAcross = kTile / kPerThread;

struct PlainOperand {
  const float* data;
  int64_t outer_stride;
  int64_t inner_stride;
  int64_t outers;
};

struct PlainProblem {
  PlainOperand a;
  PlainOperand b;
  float* c;
  int64_t c_stride;
  const float* added;  // null: nothing
  int64_t added_stride;
  int64_t k;
};

// Padded, so that threads that store along the inner dimension hit few banks together.
using Slice = float[kSlice][kTile + 4];

// Loads a slice [kTile, kSlice] of an operand, transposed; zero outside.
SHOAL_DEVICE void LoadSlice(Slice& to, const PlainOperand& from, int64_t outer, int64_t inner,
                            int64_t k) {
#pragma unroll
  for (int i = 0; i < kTile * kSlice / kThreads; ++i) {
    const int at = ThreadIndex() + i * kThreads;
    // Neighbouring threads take neighbouring elements, whichever dimension is contiguous.
    const bool along_inner = from.inner_stride == 1;
    const int row = along_inner ? at / kSlice : at % kTile;
    const int column = along_inner ? at % kSlice : at / kTile;
    const bool inside = outer + row < from.outers && inner + column < k;
    to[column][row] =
        inside ? from.data[(outer + row) * from.outer_stride + (inner + column) * from.inner_stride]
               : 0.0f;
  }
}

SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 2) MultiplyPlain(PlainProblem problem) {
  SHOAL_SHARED Slice a;
  SHOAL_SHARED Slice b;
  const int64_t column_tiles = (problem.b.outers + kTile - 1) / kTile;
  const int64_t row = BlockX() / column_tiles * kTile;
  const int64_t column = BlockX() % column_tiles * kTile;
  const int down = ThreadIndex() / kAcross * kPerThread;
  const int across = ThreadIndex() % kAcross * kPerThread;
  float sum[kPerThread][kPerThread] = {};
  for (int64_t inner = 0; inner < problem.k; inner += kSlice) {
    LoadSlice(a, problem.a, row, inner, problem.k);
    LoadSlice(b, problem.b, column, inner, problem.k);
    SyncBlock();
#pragma unroll
    for (int l = 0; l < kSlice; ++l) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) {
          sum[i][j] += a[l][down + i] * b[l][across + j];
        }
      }
    }
    SyncBlock();
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      if (row + down + i < problem.a.outers && column + across + j < problem.b.outers) {
        const int64_t to_row = row + down + i;
        const int64_t to_column = column + across + j;
        if (problem.added != nullptr) {
          sum[i][j] += problem.added[to_row * problem.added_stride + to_column];
        }
        problem.c[to_row * problem.c_stride + to_column] = sum[i][j];
      }
    }
  }
}

PlainOperand OperandOf(const ConstView& view, bool inner_is_rows, int64_t outers) {
  return {static_cast<const float*>(view.data), inner_is_rows ? 1 : view.stride,
          inner_is_rows ? view.stride : 1, outers};
}

}  // namespace

cudaError_t PlainMatmul(cudaStream_t stream, const MatmulLaunch& launch) {
  PlainProblem problem = {};
  problem.a = OperandOf(launch.a, launch.transpose_a, launch.m());
  problem.b = OperandOf(launch.b, !launch.transpose_b, launch.n());
  problem.c = static_cast<float*>(launch.c.data);
  problem.c_stride = launch.c.stride;
  problem.added = static_cast<const float*>(launch.added.data);
  problem.added_stride = launch.added.stride;
  problem.k = launch.k();
  const int64_t tiles = ((launch.m() + kTile - 1) / kTile) * ((launch.n() + kTile - 1) / kTile);
  return Launch(stream, Grid{tiles, 1, 1}, kThreads, 0, MultiplyPlain, problem);
}

}  // namespace shoal::worker::cuda
