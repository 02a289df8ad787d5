// Attention backward, bf16, on tensor cores: d_keys and d_values. Only backward.cu includes it.
//
// A block takes a tile of keys of one kv head and goes over the rows that see them, of all heads of
// the group, a tile at a time:
//
//   P^T = 2^(K Q^T - log_sum_exp)
//   dS^T = P^T (V dO^T - delta)
//   d_values += P^T dO
//   d_keys += dS^T Q
//
// Keys are the rows of all four products, so P and dS pass from one product to the next in
// registers. Meanwhile the next tile of Q and dO is copied into the other half of shared memory:
// one SyncBlock per tile. Rows beyond the sequence are zeros, so they add nothing, whatever their
// P.
//
// Limits on an H200 at head_dim 128: 8 D operations for each visible score. A warp holds 16 keys: K
// and V, d_keys and d_values are 192 registers per thread. Each 512 bytes read of shared memory
// serve 2 products of 16 x 8 x 16: 2048 operations per cycle, so shared memory limits it to half of
// wgmma's rate, just below what mma.sync has (60 %).
#pragma once

#include "worker/ops/cuda/attention/backward.h"
#include "worker/ops/cuda/attention/tile_ops.h"

namespace shoal::worker::cuda {

template <int kWidth>
struct KeySizes {
  static constexpr int kKeys = LargeAttentionTiles(kWidth).d_key_keys;
  static constexpr int kStrips = kKeys / kAttentionWarps / 16;  // of 16 keys, per warp
  // Columns of the gradients that a block sums; wider ones are divided among kParts blocks.
  static constexpr int kColumns = kWidth < 128 ? kWidth : 128;
  static constexpr int kParts = kWidth / kColumns;
  // Keys and values beyond a warp's registers are read again for each 16 rows.
  static constexpr bool kKeysHeld = kWidth <= 128;
  static constexpr bool kValuesHeld = kWidth <= 128 && (kStrips == 1 || kWidth <= 32);
};

// A warp's keys.
template <int kWidth>
struct KeyGradients {
  using Sizes = KeySizes<kWidth>;
  static constexpr int kStrips = Sizes::kStrips;
  static constexpr int kSteps = kWidth / 16;

  uint32_t keys[Sizes::kKeysHeld ? kSteps : 1][kStrips][4];
  uint32_t values[Sizes::kValuesHeld ? kSteps : 1][kStrips][4];
  float d_keys[kStrips][Sizes::kColumns / 8][4];
  float d_values[kStrips][Sizes::kColumns / 8][4];

  SHOAL_DEVICE static void Load(const Bf16* lane, int step, uint32_t (&to)[kStrips][4]) {
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
      LoadMatrix(to[m], lane + m * 16 * TilePitch(kWidth) + step * 16);
    }
  }

  // Computes K Q^T and V dO^T for 16 rows.
  SHOAL_DEVICE void Scores(const Bf16* key_lane, const Bf16* value_lane, const Bf16* query_lane,
                           const Bf16* d_out_lane, float (&scores)[kStrips][2][4],
                           float (&d_probabilities)[kStrips][2][4]) {
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[m][0][i] = scores[m][1][i] = 0;
        d_probabilities[m][0][i] = d_probabilities[m][1][i] = 0;
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t(&key)[kStrips][4] = keys[Sizes::kKeysHeld ? step : 0];
      uint32_t(&value)[kStrips][4] = values[Sizes::kValuesHeld ? step : 0];
      if constexpr (!Sizes::kKeysHeld) {
        Load(key_lane, step, key);
      }
      if constexpr (!Sizes::kValuesHeld) {
        Load(value_lane, step, value);
      }
      uint32_t queries[4];
      uint32_t d_out[4];
      LoadMatrix(queries, query_lane + step * 16);
      LoadMatrix(d_out, d_out_lane + step * 16);
#pragma unroll
      for (int m = 0; m < kStrips; ++m) {
        MultiplyAddPair(scores[m][0], scores[m][1], key[m], queries);
        MultiplyAddPair(d_probabilities[m][0], d_probabilities[m][1], value[m], d_out);
      }
    }
  }

  SHOAL_DEVICE void Add(const Bf16* query_lane, const Bf16* d_out_lane,
                        const uint32_t (&probabilities)[kStrips][4],
                        const uint32_t (&d_scores)[kStrips][4]) {
#pragma unroll
    for (int n = 0; n < Sizes::kColumns / 8; n += 2) {
      uint32_t d_out[4];
      uint32_t queries[4];
      LoadMatrixTransposed(d_out, d_out_lane + n * 8);
      LoadMatrixTransposed(queries, query_lane + n * 8);
#pragma unroll
      for (int m = 0; m < kStrips; ++m) {
        MultiplyAddPair(d_values[m][n], d_values[m][n + 1], probabilities[m], d_out);
        MultiplyAddPair(d_keys[m][n], d_keys[m][n + 1], d_scores[m], queries);
      }
    }
  }
};

// Turns scores and d_probabilities of 16 keys, from the lane's first, `lane_key`, and of 16 rows
// from `first_row` of the sequence, into P^T and dS^T as left operands. Rows are columns here.
// `hidden`: some rows do not see some keys. `window` is in rows.
SHOAL_DEVICE void KeySoftmax(float scale, bool hidden, int group, int window, int lane_key,
                             int first_row, const RowStatistics* statistics,
                             const float (&scores)[2][4], const float (&d_probabilities)[2][4],
                             uint32_t (&probabilities)[4], uint32_t (&d_scores)[4]) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int column = n * 8 + LaneIndex() % 4 * 2;
    const RowStatistics left = statistics[column];
    const RowStatistics right = statistics[column + 1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float p_left = Exp2Approximate(scores[n][2 * half] * scale - left.log2_sum_exp);
      float p_right = Exp2Approximate(scores[n][2 * half + 1] * scale - right.log2_sum_exp);
      if (hidden) {
        const int before = (lane_key + half * 8) * group - first_row - column;
        p_left = before > 0 || before + window <= 0 ? 0.0f : p_left;
        p_right = before > 1 || before + window <= 1 ? 0.0f : p_right;
      }
      const int to = n * 2 + half;
      probabilities[to] = PackBf16(p_left, p_right);
      d_scores[to] = PackBf16(p_left * (d_probabilities[n][2 * half] - left.delta),
                              p_right * (d_probabilities[n][2 * half + 1] - right.delta));
    }
  }
}

// Computes block `block` of keys.blocks() x kParts, kRows rows at a time.
template <int kWidth, int kRows>
SHOAL_DEVICE void KeyGradientsOfBlock(const AttentionBackwardArgs& args, int block) {
  using Sizes = KeySizes<kWidth>;
  constexpr int kPitch = TilePitch(kWidth);
  constexpr int kWarpKeys = Sizes::kStrips * 16;
  const AttentionProblem& problem = args.keys;
  const HeadOfSequence head = HeadOfBlock(problem, block / Sizes::kParts);
  const int group = problem.group.size;
  const int rows = head.rows(problem);
  const int first_key = head.tile.first;
  const int start_row = first_key * group;    // the first one that sees the first key
  const int window = problem.window * group;  // in rows
  const int end_row = Smaller(rows, start_row + (Sizes::kKeys - 1) * group + window);
  const int row_tiles = (end_row - start_row + kRows - 1) / kRows;

  Bf16* const key_tile = reinterpret_cast<Bf16*>(DynamicShared());
  Bf16* const value_tile = key_tile + Sizes::kKeys * kPitch;
  Bf16* const query_tile = value_tile + Sizes::kKeys * kPitch;
  Bf16* const d_out_tile = query_tile + 2 * kRows * kPitch;
  auto* const statistics = reinterpret_cast<RowStatistics*>(d_out_tile + 2 * kRows * kPitch);
  const auto* qkv = static_cast<const Bf16*>(args.qkv);
  const auto* d_out = static_cast<const Bf16*>(args.d_out);
  const auto copy_rows = [&](int tile) {
    const int half = tile % 2 * kRows * kPitch;
    CopyRows<kRows, kWidth, 2>(
        problem, head, start_row + tile * kRows,
        {{qkv, args.qkv_stride, query_tile + half}, {d_out, args.d_out_stride, d_out_tile + half}});
    if (ThreadIndex() < kRows) {
      const int row = start_row + tile * kRows + ThreadIndex();
      CopyAsync8(statistics + tile % 2 * kRows + ThreadIndex(),
                 args.statistics + head.StatisticsOffset(problem, row), row < rows);
    }
    CommitCopies();
  };
  CopyKeys<Sizes::kKeys, kWidth>(qkv + head.KeyOffset(problem, args.qkv_stride, 0), args.qkv_stride,
                                 problem.kv_heads * problem.head_dim, first_key, head.tile.length,
                                 problem.head_dim, key_tile, value_tile);
  copy_rows(0);

  const int warp_key = WarpIndex() * kWarpKeys;  // within the tile
  // This block's columns of the gradients.
  const int part = block % Sizes::kParts * Sizes::kColumns;
  const Bf16* const key_lane = RowsFirst<kWidth>(key_tile + warp_key * kPitch);
  const Bf16* const value_lane = RowsFirst<kWidth>(value_tile + warp_key * kPitch);
  const float scale = problem.scale * kLog2OfE;
  KeyGradients<kWidth> own = {};
  if constexpr (Sizes::kKeysHeld) {
    WaitCopies<0>();
    SyncBlock();
#pragma unroll
    for (int step = 0; step < kWidth / 16; ++step) {
      own.Load(key_lane, step, own.keys[step]);
      if constexpr (Sizes::kValuesHeld) {
        own.Load(value_lane, step, own.values[step]);
      }
    }
  }
  for (int tile = 0; tile < row_tiles; ++tile) {
    WaitCopies<0>();
    SyncBlock();
    if (tile + 1 < row_tiles) {
      copy_rows(tile + 1);
    }
#pragma unroll 1
    for (int strip = 0; strip < kRows; strip += 16) {
      const int in_tiles = (tile % 2 * kRows + strip) * kPitch;
      const int first_row = start_row + tile * kRows + strip;
      const int own_key = first_key + warp_key;
      const int last_key = own_key + kWarpKeys - 1;
      if (first_row + 15 >= own_key * group && first_row < last_key * group + window) {
        uint32_t probabilities[Sizes::kStrips][4];
        uint32_t d_scores[Sizes::kStrips][4];
        const bool hidden =
            first_row < last_key * group || first_row + 15 >= own_key * group + window;
        float scores[Sizes::kStrips][2][4];
        float d_probabilities[Sizes::kStrips][2][4];
        own.Scores(key_lane, value_lane, ColumnsFirst<kWidth>(query_tile + in_tiles),
                   ColumnsFirst<kWidth>(d_out_tile + in_tiles), scores, d_probabilities);
#pragma unroll
        for (int m = 0; m < Sizes::kStrips; ++m) {
          KeySoftmax(scale, hidden, group, window, own_key + m * 16 + LaneIndex() / 4, first_row,
                     statistics + tile % 2 * kRows + strip, scores[m], d_probabilities[m],
                     probabilities[m], d_scores[m]);
        }
        own.Add(RowsFirst<kWidth>(query_tile + in_tiles) + part,
                RowsFirst<kWidth>(d_out_tile + in_tiles) + part, probabilities, d_scores);
      }
    }
  }

  float scales[Sizes::kStrips][2];
  float ones[Sizes::kStrips][2];
#pragma unroll
  for (int m = 0; m < Sizes::kStrips; ++m) {
    scales[m][0] = scales[m][1] = problem.scale;
    ones[m][0] = ones[m][1] = 1.0f;
  }
  auto* d_qkv = static_cast<Bf16*>(args.d_qkv) + part;
  StoreRows(own.d_keys, scales, first_key + warp_key, head.tile.length, problem.head_dim - part,
            [&](int i) { return d_qkv + head.KeyOffset(problem, args.d_qkv_stride, i); });
  StoreRows(own.d_values, ones, first_key + warp_key, head.tile.length, problem.head_dim - part,
            [&](int i) { return d_qkv + head.ValueOffset(problem, args.d_qkv_stride, i); });
}

}  // namespace shoal::worker::cuda
