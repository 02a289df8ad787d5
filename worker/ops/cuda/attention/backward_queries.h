// Attention backward, bf16, on tensor cores: d_queries. Only backward.cu includes it.
//
// A block takes a tile of rows and goes over the keys that they see, a tile at a time:
//
//   P = 2^(Q K^T - log_sum_exp)
//   dS = P (dO V^T - delta)
//   d_queries += dS K
//
// Structured as the forward pass: rows are the rows of all three products, and the next tile of K
// and V is copied meanwhile.
//
// Limits on an H200 at head_dim 128: 6 D operations for each visible score. A warp holds 16 rows (Q
// and dO in registers), so each 512 bytes read of shared memory serve 2 products of 16 x 8 x 16:
// shared memory limits it to 2048 operations per cycle, half of wgmma's rate. At 64, 32 rows:
// mma.sync is the limit.
#pragma once

#include "worker/ops/cuda/attention/backward.h"
#include "worker/ops/cuda/attention/tile_ops.h"

namespace shoal::worker::cuda {

template <int kWidth>
struct QuerySizes {
  static constexpr int kRows = LargeAttentionTiles(kWidth).d_query_rows;
  static constexpr int kStrips = kRows / kAttentionWarps / 16;  // of 16 rows, per warp
  // Wide rows are read again for each tile of keys.
  static constexpr bool kHeld = kWidth <= 128;
};

// A warp's rows.
template <int kWidth>
struct QueryGradients {
  using Sizes = QuerySizes<kWidth>;
  static constexpr int kStrips = Sizes::kStrips;
  static constexpr int kSteps = kWidth / 16;

  uint32_t queries[Sizes::kHeld ? kSteps : 1][kStrips][4];
  uint32_t d_out[Sizes::kHeld ? kSteps : 1][kStrips][4];
  float d_queries[kStrips][kWidth / 8][4];
  RowStatistics statistics[kStrips][2];

  SHOAL_DEVICE void Load(const Bf16* query_lane, const Bf16* d_out_lane, int step, int held) {
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
      const int offset = m * 16 * TilePitch(kWidth) + step * 16;
      LoadMatrix(queries[held][m], query_lane + offset);
      LoadMatrix(d_out[held][m], d_out_lane + offset);
    }
  }

  // Computes Q K^T and dO V^T for 16 keys.
  SHOAL_DEVICE void Scores(const Bf16* query_lane, const Bf16* d_out_lane, const Bf16* key_lane,
                           const Bf16* value_lane, float (&scores)[kStrips][2][4],
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
      const int held = Sizes::kHeld ? step : 0;
      if constexpr (!Sizes::kHeld) {
        Load(query_lane, d_out_lane, step, held);
      }
      uint32_t keys[4];
      uint32_t values[4];
      LoadMatrix(keys, key_lane + step * 16);
      LoadMatrix(values, value_lane + step * 16);
#pragma unroll
      for (int m = 0; m < kStrips; ++m) {
        MultiplyAddPair(scores[m][0], scores[m][1], queries[held][m], keys);
        MultiplyAddPair(d_probabilities[m][0], d_probabilities[m][1], d_out[held][m], values);
      }
    }
  }

  // Computes dS as left operands, for 16 keys from `first_key`. `hidden`: some rows do not see
  // some.
  SHOAL_DEVICE void Softmax(float scale, bool hidden, GroupDivider group, int window, int warp_row,
                            int first_key, const float (&scores)[kStrips][2][4],
                            const float (&d_probabilities)[kStrips][2][4],
                            uint32_t (&d_scores)[kStrips][4]) {
    const int lane = LaneIndex();
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const RowStatistics& of_row = statistics[m][half];
        float p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[i] = Exp2Approximate(scores[m][i / 2][2 * half + i % 2] * scale - of_row.log2_sum_exp);
        }
        if (hidden) {
          // Last key that the row sees, counted from the lane's first.
          const int last =
              group.Quotient(warp_row + m * 16 + half * 8 + lane / 4) - first_key - lane % 4 * 2;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = i / 2 * 8 + i % 2;
            p[i] = key > last || key <= last - window ? 0.0f : p[i];
          }
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          d_scores[m][n * 2 + half] =
              PackBf16(p[2 * n] * (d_probabilities[m][n][2 * half] - of_row.delta),
                       p[2 * n + 1] * (d_probabilities[m][n][2 * half + 1] - of_row.delta));
        }
      }
    }
  }

  SHOAL_DEVICE void Add(const Bf16* key_lane, const uint32_t (&d_scores)[kStrips][4]) {
#pragma unroll
    for (int n = 0; n < kWidth / 8; n += 2) {
      uint32_t keys[4];
      LoadMatrixTransposed(keys, key_lane + n * 8);
#pragma unroll
      for (int m = 0; m < kStrips; ++m) {
        MultiplyAddPair(d_queries[m][n], d_queries[m][n + 1], d_scores[m], keys);
      }
    }
  }
};

// Computes block `block` of rows.blocks(), kKeys keys at a time.
template <int kWidth, int kKeys>
SHOAL_DEVICE void QueryGradientsOfBlock(const AttentionBackwardArgs& args, int block) {
  using Sizes = QuerySizes<kWidth>;
  constexpr int kPitch = TilePitch(kWidth);
  constexpr int kWarpRows = Sizes::kStrips * 16;
  const AttentionProblem& problem = args.rows;
  const HeadOfSequence head = HeadOfBlock(problem, block);
  const int rows = head.rows(problem);
  const int first_row = head.tile.first;
  const int end_row = Smaller(rows, first_row + Sizes::kRows);
  const int first_tile = problem.FirstKey(problem.group.Quotient(first_row)) / kKeys;
  const int key_tiles = problem.group.Quotient(end_row - 1) / kKeys + 1;

  Bf16* const query_tile = reinterpret_cast<Bf16*>(DynamicShared());
  Bf16* const d_out_tile = query_tile + Sizes::kRows * kPitch;
  Bf16* const key_tile = d_out_tile + Sizes::kRows * kPitch;
  Bf16* const value_tile = key_tile + 2 * kKeys * kPitch;
  const auto* qkv = static_cast<const Bf16*>(args.qkv);
  const auto* d_out = static_cast<const Bf16*>(args.d_out);
  const Bf16* const keys = qkv + head.KeyOffset(problem, args.qkv_stride, 0);
  const auto copy_keys = [&](int tile) {
    const int half = tile % 2 * kKeys * kPitch;
    CopyKeys<kKeys, kWidth>(keys, args.qkv_stride, problem.kv_heads * problem.head_dim,
                            tile * kKeys, head.tile.length, problem.head_dim, key_tile + half,
                            value_tile + half);
    CommitCopies();
  };
  CopyRows<Sizes::kRows, kWidth, 2>(
      problem, head, first_row,
      {{qkv, args.qkv_stride, query_tile}, {d_out, args.d_out_stride, d_out_tile}});
  copy_keys(first_tile);

  const int warp_row = first_row + WarpIndex() * kWarpRows;
  const int warp_first_query = problem.group.Quotient(warp_row);
  const int warp_last_query = problem.group.Quotient(warp_row + kWarpRows - 1);
  Bf16* const own_queries = query_tile + WarpIndex() * kWarpRows * kPitch;
  const Bf16* const query_lane = RowsFirst<kWidth>(own_queries);
  const Bf16* const d_out_lane = query_lane + (d_out_tile - query_tile);
  QueryGradients<kWidth> own = {};
#pragma unroll
  for (int m = 0; m < Sizes::kStrips; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + m * 16 + half * 8 + LaneIndex() / 4;
      own.statistics[m][half] = row < rows ? args.statistics[head.StatisticsOffset(problem, row)]
                                           : RowStatistics{INFINITY, 0.0f};
    }
  }
  if constexpr (Sizes::kHeld) {
    WaitCopies<0>();
    SyncBlock();
#pragma unroll
    for (int step = 0; step < kWidth / 16; ++step) {
      own.Load(query_lane, d_out_lane, step, step);
    }
  }

  const float scale = problem.scale * kLog2OfE;
  for (int tile = first_tile; tile < key_tiles; ++tile) {
    WaitCopies<0>();
    SyncBlock();
    if (tile + 1 < key_tiles) {
      copy_keys(tile + 1);
    }
#pragma unroll 1
    for (int strip = 0; strip < kKeys; strip += 16) {
      const int first_key = tile * kKeys + strip;
      if (warp_row < rows && first_key <= warp_last_query &&
          first_key + 15 >= problem.FirstKey(warp_first_query)) {
        const int in_tiles = (tile % 2 * kKeys + strip) * kPitch;
        float scores[Sizes::kStrips][2][4];
        float d_probabilities[Sizes::kStrips][2][4];
        own.Scores(query_lane, d_out_lane, ColumnsFirst<kWidth>(key_tile + in_tiles),
                   ColumnsFirst<kWidth>(value_tile + in_tiles), scores, d_probabilities);
        uint32_t d_scores[Sizes::kStrips][4];
        const bool hidden =
            first_key + 15 > warp_first_query || first_key < problem.FirstKey(warp_last_query);
        own.Softmax(scale, hidden, problem.group, problem.window, warp_row, first_key, scores,
                    d_probabilities, d_scores);
        own.Add(RowsFirst<kWidth>(key_tile + in_tiles), d_scores);
      }
    }
  }

  float scales[Sizes::kStrips][2];
#pragma unroll
  for (int m = 0; m < Sizes::kStrips; ++m) {
    scales[m][0] = scales[m][1] = problem.scale;
  }
  auto* d_qkv = static_cast<Bf16*>(args.d_qkv);
  StoreRows(own.d_queries, scales, warp_row, rows, problem.head_dim,
            [&](int i) { return d_qkv + head.RowOffset(problem, args.d_qkv_stride, i); });
}

}  // namespace shoal::worker::cuda
