// What the attention kernels on tensor cores share: tiles of bf16 rows in shared memory, the
// fragments that warps read of them, and sums over the lanes that hold one row.
//
// A tile's rows are 16 bytes longer than their elements: an odd number of 16-byte units, so that
// the eight rows of an 8x8 matrix lie in different banks, and all offsets within a tile except the
// lane's own are constants.
#pragma once

#include <cmath>

#include "core/gpu/kernel/kernel.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/attention/shape.h"

namespace shoal::worker::cuda {

inline constexpr float kLog2OfE = 1.4426950408889634f;
inline constexpr float kLogOf2 = 0.6931471805599453f;

SHOAL_DEVICE int Smaller(int a, int b) { return a < b ? a : b; }

SHOAL_DEVICE HeadOfSequence HeadOfBlock(const AttentionProblem& problem, int block) {
  const int tile = block / problem.kv_heads;
  return {problem.tiles[tile], block - tile * problem.kv_heads};
}

// Where a lane reads fragments of a tile whose rows are the left operand's rows, or (transposed)
// the right operand's: rows down first, then columns.
template <int kWidth>
SHOAL_DEVICE const Bf16* RowsFirst(const Bf16* tile) {
  const int lane = LaneIndex();
  return tile + lane % 16 * TilePitch(kWidth) + lane / 16 * 8;
}
// Same as above if the tile's rows are the right operand's columns: columns first, then rows.
template <int kWidth>
SHOAL_DEVICE const Bf16* ColumnsFirst(const Bf16* tile) {
  const int lane = LaneIndex();
  return tile + (lane / 16 * 8 + lane % 8) * TilePitch(kWidth) + lane / 8 % 2 * 8;
}

// Two neighbouring [16, 8] sums += a b, with b as loaded by one LoadMatrix: [16, 16].
SHOAL_DEVICE void MultiplyAddPair(float (&left)[4], float (&right)[4], const uint32_t (&a)[4],
                                  const uint32_t (&b)[4]) {
  const uint32_t b_left[2] = {b[0], b[1]};
  const uint32_t b_right[2] = {b[2], b[3]};
  MultiplyAdd(left, a, b_left);
  MultiplyAdd(right, a, b_right);
}

// Sums over the four lanes that hold one row of a result.
SHOAL_DEVICE float RowSum(float value) {
  value += ShuffleXor(value, 1);
  return value + ShuffleXor(value, 2);
}
SHOAL_DEVICE float RowMax(float value) {
  value = fmaxf(value, ShuffleXor(value, 1));
  return fmaxf(value, ShuffleXor(value, 2));
}

// How a block's threads divide rows of kWidth elements to copy: kLanes of them take a row, each
// every kLanes-th 16 bytes, and a thread's rows are kStep apart. So a thread's addresses in a tile
// are its first one and constants, and those in global memory grow by one stride.
template <int kWidth>
struct CopyLanes {
  static constexpr int kUnits = kWidth / 8;
  static constexpr int kLanes = kUnits & -kUnits;
  static constexpr int kStep = kAttentionThreads / kLanes;

  int row;
  int column;
  int in_tile;

  SHOAL_DEVICE CopyLanes()
      : row(ThreadIndex() / kLanes),
        column(ThreadIndex() % kLanes * 8),
        in_tile(row * TilePitch(kWidth) + column) {}

  // Calls copy(element of a row, of a tile, whether it is one of `columns`) for each of this
  // thread's 16 bytes of a row; `row_of_tile` is a constant.
  template <typename Copy>
  SHOAL_DEVICE void ForUnits(int row_of_tile, int columns, const Copy& copy) const {
#pragma unroll
    for (int unit = 0; unit < kUnits; unit += kLanes) {
      const int at = unit * 8;
      copy(at, in_tile + row_of_tile * TilePitch(kWidth) + at, column + at < columns);
    }
  }
};

// Starts copying keys [first, first + kKeys) of a sequence of `length`, and their values, which lie
// `apart` elements from them. Tiles get zeros for keys from `length` on, which are not read, and
// beyond the columns of a head.
template <int kKeys, int kWidth>
SHOAL_DEVICE void CopyKeys(const Bf16* keys, int64_t stride, int64_t apart, int first, int length,
                           int columns, Bf16* key_tile, Bf16* value_tile) {
  const CopyLanes<kWidth> lanes;
  static_assert(kKeys % lanes.kStep == 0);
  const Bf16* from = keys + (first + lanes.row) * stride + lanes.column;
  const int left = length - first - lanes.row;
#pragma unroll
  for (int row = 0; row < kKeys; row += lanes.kStep) {
    lanes.ForUnits(row, columns, [&](int at, int to, bool valid) {
      CopyAsync16(key_tile + to, from + at, valid && row < left);
      CopyAsync16(value_tile + to, from + apart + at, valid && row < left);
    });
    from += lanes.kStep * stride;
  }
}

// A matrix whose rows are copied, from its first element on, and their destination.
struct RowSource {
  const Bf16* matrix;
  int64_t stride;
  Bf16* tile;
};

// Same as above for rows [first, first + kRows) of a sequence and kv head, of several matrices at
// once.
template <int kRows, int kWidth, int kSources>
SHOAL_DEVICE void CopyRows(const AttentionProblem& problem, const HeadOfSequence& head, int first,
                           const RowSource (&sources)[kSources]) {
  const CopyLanes<kWidth> lanes;
  static_assert(kRows % lanes.kStep == 0);
  const int group = problem.group.size;
  const int columns = problem.head_dim;
  const int start = first + lanes.row;
  const Bf16* from[kSources];
#pragma unroll
  for (int i = 0; i < kSources; ++i) {
    from[i] = sources[i].matrix + head.RowOffset(problem, sources[i].stride, start) + lanes.column;
  }
  const int left = head.rows(problem) - start;
  const auto copy_row = [&](int row) {
    lanes.ForUnits(row, columns, [&](int at, int to, bool valid) {
#pragma unroll
      for (int i = 0; i < kSources; ++i) {
        CopyAsync16(sources[i].tile + to, from[i] + at, valid && row < left);
      }
    });
  };
  // A step advances by this many tokens and heads; beyond the group's last head, by one more token.
  const int tokens = problem.group.Quotient(lanes.kStep);
  const int heads = lanes.kStep - tokens * group;
  if (heads == 0) {
#pragma unroll
    for (int row = 0; row < kRows; row += lanes.kStep) {
      copy_row(row);
#pragma unroll
      for (int i = 0; i < kSources; ++i) {
        from[i] += tokens * sources[i].stride;
      }
    }
    return;
  }
  int head_of_group = start - problem.group.Quotient(start) * group;
#pragma unroll 1
  for (int row = 0; row < kRows; row += lanes.kStep) {
    copy_row(row);
    head_of_group += heads;
    const bool beyond = head_of_group >= group;
    head_of_group -= beyond ? group : 0;
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      from[i] += (tokens + (beyond ? 1 : 0)) * sources[i].stride +
                 (heads - (beyond ? group : 0)) * columns;
    }
  }
}

// Transposes four tiles among the four lanes of a row: lane t has two columns of each tile before,
// all eight columns of tile t after.
SHOAL_DEVICE void TransposeInRow(uint32_t (&words)[4]) {
  const bool odd = LaneIndex() % 2 != 0;
  const bool high = LaneIndex() % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = ShuffleXor(odd ? words[i] : words[i + 1], 1);
    words[i] = odd ? got : words[i];
    words[i + 1] = odd ? words[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = ShuffleXor(high ? words[i] : words[i + 2], 2);
    words[i] = high ? got : words[i];
    words[i + 2] = high ? words[i + 2] : got;
  }
}

// Writes a warp's [16 kStrips, 8 kTiles] results as bf16, row by row multiplied by `factors`: rows
// `first`, `first` + 1, ... to target(row), 16 bytes at once; omits rows from `end` on and columns
// from `columns` on. Straight from registers: stores to shared memory in these kernels make ptxas
// spill in their loops.
template <int kStrips, int kTiles, typename Target>
SHOAL_DEVICE void StoreRows(const float (&results)[kStrips][kTiles][4],
                            const float (&factors)[kStrips][2], int first, int end, int columns,
                            const Target& target) {
  static_assert(kTiles % 4 == 0);
#pragma unroll
  for (int m = 0; m < kStrips; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + LaneIndex() / 4;
      const int column = LaneIndex() % 4 * 8;
      Bf16* const to = target(row) + column;
#pragma unroll
      for (int n = 0; n < kTiles; n += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[i] = PackBf16(results[m][n + i][2 * half] * factors[m][half],
                              results[m][n + i][2 * half + 1] * factors[m][half]);
        }
        TransposeInRow(words);
        if (row < end && n * 8 + column < columns) {
          StoreWords(words, to + n * 8);
        }
      }
    }
  }
}

// Calls function.operator()<width>() with the width of those tiles. Host code.
template <typename Function>
cudaError_t WithWidth(int width, const Function& function) {
  switch (width) {
    case 32:
      return function.template operator()<32>();
    case 64:
      return function.template operator()<64>();
    case 96:
      return function.template operator()<96>();
    case 128:
      return function.template operator()<128>();
    default:
      return function.template operator()<256>();
  }
}

}  // namespace shoal::worker::cuda
