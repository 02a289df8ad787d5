// The tensor core product: device code that aligned_matmul.cu and unaligned_matmul.cu instantiate.
//
// A block computes one tile of C (of one split of k). Tiles of A and B, 64 of the inner dimension
// deep, pass through a ring of kStages stages in shared memory, copied kStages - 1 ahead. Each warp
// holds its part of C in registers and loads the fragments of the next 16 of the inner dimension
// while it multiplies the last ones, across stages too, so that tensor cores wait for neither
// memory. Sums are fp32, over k in order: the same bits whatever else runs.
#pragma once

#include "core/gpu/kernel/packed.h"
#include "worker/ops/cuda/matmul/matmul_kernel.h"
#include "worker/ops/cuda/matmul/operand_tile.h"

namespace shoal::worker::cuda {

struct MatmulProblem {
  Operand a;
  Operand b;
  void* c;
  int64_t c_stride;
  int64_t split_stride;  // of C, where it is partials
  int m;
  int n;
  int k;
  int k_per_split;
  const void* added;  // of C's type; null: nothing
  int64_t added_stride;
  bool c_is_f32;
  bool c_in_pairs;      // two neighbouring elements of a row may be stored at once
  bool added_in_pairs;  // and loaded
};

template <int kRows_, int kColumns_, int kWarpRows_, int kWarpColumns_, int kBlocks_>
struct TileShape {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kWarpRows = kWarpRows_;        // of C, per warp
  static constexpr int kWarpColumns = kWarpColumns_;  // of C, per warp
  static constexpr int kBlocks = kBlocks_;            // per multiprocessor
  static constexpr int kThreads = kWarp * (kRows / kWarpRows) * (kColumns / kWarpColumns);
  static constexpr int kStages = 3;
  static constexpr int kABytes = kRows * kInner * 2;
  static constexpr int kStageBytes = (kRows + kColumns) * kInner * 2;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};
using Tile64x64 = TileShape<64, 64, 32, 32, 4>;
using Tile128x128 = TileShape<128, 128, 64, 64, 2>;
using Tile128x256 = TileShape<128, 256, 64, 64, 1>;

struct TilePlace {
  int row;
  int column;
};

// Concurrent blocks form bands of 8 tiles of rows, so that their operands are few and stay in
// cache.
template <class Tile>
SHOAL_DEVICE TilePlace PlaceOfBlock(const MatmulProblem& problem) {
  constexpr int kBand = 8;
  const int row_tiles = (problem.m + Tile::kRows - 1) / Tile::kRows;
  const int column_tiles = (problem.n + Tile::kColumns - 1) / Tile::kColumns;
  const int band = BlockX() / (kBand * column_tiles);
  const int in_band = BlockX() % (kBand * column_tiles);
  const int left = row_tiles - band * kBand;
  const int rows = left < kBand ? left : kBand;
  return {(band * kBand + in_band % rows) * Tile::kRows, in_band / rows * Tile::kColumns};
}

// Loads the first `columns` (at most both) of two neighbouring elements of the addend.
template <typename T>
SHOAL_DEVICE void LoadPairOf(const MatmulProblem& problem, int64_t offset, int columns,
                             float (&to)[2]) {
  if (problem.added_in_pairs && columns > 1) {
    LoadFloats<T>(problem.added, offset, to);
    return;
  }
  const T* added = static_cast<const T*>(problem.added) + offset;
  to[0] = ToFloat(added[0]);
  to[1] = columns > 1 ? ToFloat(added[1]) : 0.0f;
}
SHOAL_DEVICE void LoadPair(const MatmulProblem& problem, int64_t offset, int columns,
                           float (&to)[2]) {
  if (problem.c_is_f32) {
    LoadPairOf<float>(problem, offset, columns, to);
  } else {
    LoadPairOf<Bf16>(problem, offset, columns, to);
  }
}
SHOAL_DEVICE void StorePair(const MatmulProblem& problem, int64_t offset, int columns, float low,
                            float high) {
  const bool at_once = problem.c_in_pairs && columns > 1;
  if (!problem.c_is_f32) {
    Bf16* c = static_cast<Bf16*>(problem.c) + offset;
    if (at_once) {
      StoreWords<1>({PackBf16(low, high)}, c);
      return;
    }
    c[0] = FromFloat<Bf16>(low);
    if (columns > 1) {
      c[1] = FromFloat<Bf16>(high);
    }
    return;
  }
  float* c = static_cast<float*>(problem.c) + offset;
  if (at_once) {
    StoreWords<2>({BitsOf(low), BitsOf(high)}, c);
    return;
  }
  c[0] = low;
  if (columns > 1) {
    c[1] = high;
  }
}

// A warp's part of the tile of C, and the fragments that make it.
template <class Tile, class A, class B>
class WarpProduct {
 public:
  SHOAL_DEVICE WarpProduct() {
    constexpr int kAcross = Tile::kColumns / Tile::kWarpColumns;
    row_ = WarpIndex() / kAcross * Tile::kWarpRows;
    column_ = WarpIndex() % kAcross * Tile::kWarpColumns;
  }

  // Loads fragments of [inner, inner + 16) of a stage, into one of two sets.
  SHOAL_DEVICE void Load(int set, const char* stage, int inner) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      A::LoadA(a_[set][i], stage, row_ + 16 * i, inner);
    }
#pragma unroll
    for (int j = 0; j < kAlong; j += 2) {
      uint32_t two[4];
      B::LoadB(two, stage + Tile::kABytes, column_ + 8 * j, inner);
      b_[set][j][0] = two[0];
      b_[set][j][1] = two[1];
      b_[set][j + 1][0] = two[2];
      b_[set][j + 1][1] = two[3];
    }
  }
  SHOAL_DEVICE void Multiply(int set) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAlong; ++j) {
        // Back and forth, so that successive products share a fragment.
        const int along = i % 2 == 0 ? j : kAlong - 1 - j;
        MultiplyAdd(sum_[i][along], a_[set][i], b_[set][along]);
      }
    }
  }
  SHOAL_DEVICE void Store(const MatmulProblem& problem, const TilePlace& place) const {
    const int64_t split = BlockY() * problem.split_stride;
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = place.row + row_ + 16 * i + 8 * half + LaneIndex() / 4;
        const int first = place.column + column_ + LaneIndex() % 4 * 2;
        const int64_t start = split + row * problem.c_stride + first;
        const int columns = row < problem.m ? problem.n - first : 0;
        // Everything added to a row is requested before the row's first store: the compiler moves
        // no load before a store, and each load would wait for memory.
        float sums[kAlong][2] = {};
        if (problem.added != nullptr) {
          const int64_t added = row * problem.added_stride + first;
#pragma unroll
          for (int j = 0; j < kAlong; ++j) {
            if (8 * j < columns) {
              LoadPair(problem, added + 8 * j, columns - 8 * j, sums[j]);
            }
          }
        }
#pragma unroll
        for (int j = 0; j < kAlong; ++j) {
          if (8 * j < columns) {
            StorePair(problem, start + 8 * j, columns - 8 * j, sums[j][0] + sum_[i][j][2 * half],
                      sums[j][1] + sum_[i][j][2 * half + 1]);
          }
        }
      }
    }
  }

 private:
  static constexpr int kDown = Tile::kWarpRows / 16;
  static constexpr int kAlong = Tile::kWarpColumns / 8;
  int row_;
  int column_;
  float sum_[kDown][kAlong][4] = {};
  uint32_t a_[2][kDown][4];
  uint32_t b_[2][kAlong][2];
};

template <class Tile, class A, class B>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(Tile::kThreads, Tile::kBlocks)
    TensorCoreMatmul(MatmulProblem problem) {
  constexpr int kStages = Tile::kStages;
  constexpr int kSteps = kInner / 16;
  const TilePlace place = PlaceOfBlock<Tile>(problem);
  const int k_begin = BlockY() * problem.k_per_split;
  const int left = problem.k - k_begin;
  const int k_end = k_begin + (left < problem.k_per_split ? left : problem.k_per_split);
  char* stages = DynamicShared();
  A a(problem.a, place.row, k_begin, problem.m);
  B b(problem.b, place.column, k_begin, problem.n);

  int to_copy = k_end - k_begin;
  // Past the end of k a stage stays unchanged: nothing multiplies it.
  const auto copy_next = [&](int stage) {
    if (to_copy > 0) {
      char* at = stages + stage * Tile::kStageBytes;
      a.CopyNext(at, to_copy);
      b.CopyNext(at + Tile::kABytes, to_copy);
      to_copy -= kInner;
    }
    CommitCopies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    copy_next(stage);
  }
  WaitCopies<kStages - 2>();
  SyncBlock();

  WarpProduct<Tile, A, B> product;
  product.Load(0, stages, 0);
  int reading = 0;
  int writing = kStages - 1;
  for (int k = k_begin; k < k_end; k += kInner) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps - 1) {
        // The next stage has arrived, and after the barrier no warp reads this one any more.
        WaitCopies<kStages - 2>();
        SyncBlock();
        reading = reading + 1 == kStages ? 0 : reading + 1;
      }
      product.Load((step + 1) % 2, stages + reading * Tile::kStageBytes, (step + 1) % kSteps * 16);
      if (step == 0) {
        copy_next(writing);
        writing = writing + 1 == kStages ? 0 : writing + 1;
      }
      product.Multiply(step % 2);
    }
  }
  product.Store(problem, place);
}

inline MatmulProblem ProblemOf(const MatmulLaunch& launch) {
  const auto operand = [](const ConstView& view, bool inner_is_rows) {
    return Operand{static_cast<const uint16_t*>(view.data), inner_is_rows ? 1 : view.stride,
                   inner_is_rows ? view.stride : 1};
  };
  const bool split = launch.splits > 1;
  MatmulProblem problem = {};
  problem.a = operand(launch.a, launch.transpose_a);
  problem.b = operand(launch.b, !launch.transpose_b);
  problem.c = split ? launch.partials : launch.c.data;
  problem.c_stride = split ? launch.n() : launch.c.stride;
  problem.split_stride = split ? launch.partial_stride() : 0;
  problem.m = static_cast<int>(launch.m());
  problem.n = static_cast<int>(launch.n());
  problem.k = static_cast<int>(launch.k());
  problem.k_per_split = split ? static_cast<int>(launch.k_per_split) : problem.k;
  problem.c_is_f32 = split || launch.c.element == Element::kF32;
  problem.added = split ? nullptr : launch.added.data;
  problem.added_stride = launch.added.stride;
  const auto in_pairs = [&](const void* data, int64_t stride) {
    const uintptr_t pair_bytes = problem.c_is_f32 ? 8 : 4;
    return stride % 2 == 0 && reinterpret_cast<uintptr_t>(data) % pair_bytes == 0;
  };
  problem.c_in_pairs = in_pairs(problem.c, problem.c_stride);
  problem.added_in_pairs = in_pairs(problem.added, problem.added_stride);
  return problem;
}

template <class Tile, class A, class B>
cudaError_t LaunchTensorCores(cudaStream_t stream, const MatmulLaunch& launch) {
  const int64_t tiles = ((launch.m() + Tile::kRows - 1) / Tile::kRows) *
                        ((launch.n() + Tile::kColumns - 1) / Tile::kColumns);
  return Launch(stream, Grid{tiles, launch.splits, 1}, Tile::kThreads, Tile::kSharedBytes,
                TensorCoreMatmul<Tile, A, B>, ProblemOf(launch));
}

}  // namespace shoal::worker::cuda
