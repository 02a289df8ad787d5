// Attention forward, bf16, on tensor cores.
//
// A block takes a tile of rows and goes over the keys that they see, a tile at a time, from the
// first:
//
//   S = Q K^T                         in registers
//   update each row's running reference and sum
//   O += P V                          corrected where the reference rose
//
// Meanwhile the next tile of K and V is copied into the other half of shared memory: one SyncBlock
// per tile. Only tiles on the diagonal and at the window's beginning are masked. A row may see no
// key of its first tiles: references begin finite, or it would subtract an infinity from another.
//
// Limits on an H200 at head_dim 128: 4 D operations for each visible score.
// - Products: mma.sync reaches about 60 % of wgmma's rate, 2450 of 4096 operations per cycle and
//   multiprocessor, so 4.8 scores per cycle.
// - Exponentials (16 per cycle) and other instructions (about 8 per score of 128 per cycle) fit
//   if one block's overlap the other's products: two blocks per multiprocessor.
// - Shared memory: for 64 keys a warp of 32 rows reads 40 KiB, 320 cycles of 128 bytes against 427
//   of the products.
// - L2: 19 bytes per cycle, just below its limit.
// So at best about 400 Tflop/s for long sequences, bound by mma.sync (predicted).
#include "worker/ops/cuda/attention/forward.h"
#include "worker/ops/cuda/attention/tile_ops.h"

namespace shoal::worker::cuda {
namespace {

template <int kWidth, int kKeys>
struct ForwardSizes {
  static constexpr int kRows = LargeAttentionTiles(kWidth).forward_rows;
  static constexpr int kStrips = kRows / kAttentionWarps / 16;  // of 16 rows, per warp
  // Wide queries are read again for each tile of keys: registers do not hold them and the sums.
  static constexpr bool kQueriesHeld = kWidth <= 64;
};

// A warp's rows: scores of one tile of keys, and the state carried from tile to tile.
template <int kWidth, int kKeys>
struct ForwardRows {
  using Sizes = ForwardSizes<kWidth, kKeys>;
  static constexpr int kStrips = Sizes::kStrips;
  static constexpr int kKeyTiles = kKeys / 8;

  uint32_t queries[Sizes::kQueriesHeld ? kWidth / 16 : 1][kStrips][4];
  float out[kStrips][kWidth / 8][4];
  float reference[kStrips][2];  // subtracted from the row's unscaled scores
  float sum[kStrips][2];        // of the lane's own columns

  SHOAL_DEVICE void LoadQueries(const Bf16* from, int column_step, int held) {
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
      LoadMatrix(queries[held][m], from + m * 16 * TilePitch(kWidth) + column_step * 16);
    }
  }

  SHOAL_DEVICE void Scores(const Bf16* query_lane, const Bf16* key_lane,
                           float (&scores)[kStrips][kKeyTiles][4]) {
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[m][n][i] = 0;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      const int held = Sizes::kQueriesHeld ? k : 0;
      if constexpr (!Sizes::kQueriesHeld) {
        LoadQueries(query_lane, k, held);
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t keys[4];
        LoadMatrix(keys, key_lane + n * 8 * TilePitch(kWidth) + k * 16);
#pragma unroll
        for (int m = 0; m < kStrips; ++m) {
          MultiplyAddPair(scores[m][n], scores[m][n + 1], queries[held][m], keys);
        }
      }
    }
  }

  // Recomputes which query each row is of instead of keeping it: most tiles are not masked.
  SHOAL_DEVICE void Mask(int warp_row, GroupDivider group, int window, int first_key,
                         float (&scores)[kStrips][kKeyTiles][4]) {
    const int lane_key = first_key + LaneIndex() % 4 * 2;
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int last = group.Quotient(warp_row + m * 16 + half * 8 + LaneIndex() / 4) - lane_key;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          if (n * 8 > last || n * 8 <= last - window) {
            scores[m][n][2 * half] = -INFINITY;
          }
          if (n * 8 + 1 > last || n * 8 + 1 <= last - window) {
            scores[m][n][2 * half + 1] = -INFINITY;
          }
        }
      }
    }
  }

  // Below any score, and above what has no difference from minus infinity.
  static constexpr float kNoReference = -1e30f;

  // Powers of two are of scores less the row's reference. It follows the maximum only when that
  // exceeds it by this much, so sums are seldom corrected; 2^8 leaves room in sums of 24 bits, and
  // probabilities have 8 bits of any size.
  static constexpr float kMostAbove = 8;

  // Raises references exceeded by more, and corrects the sums made with them. All rows of the warp
  // at once: one vote per tile of keys.
  SHOAL_DEVICE void RaiseReferences(float scale, const float (&scores)[kStrips][kKeyTiles][4]) {
    float largest[kStrips][2];
    bool exceeded = false;
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[m][half] = reference[m][half];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          largest[m][half] =
              fmaxf(largest[m][half], fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        exceeded |= (largest[m][half] - reference[m][half]) * scale > kMostAbove;
      }
    }
    if (!AnyLane(exceeded)) {
      return;
    }
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float raised = RowMax(largest[m][half]);
        const float correction = Exp2Approximate((reference[m][half] - raised) * scale);
        reference[m][half] = raised;
        sum[m][half] *= correction;
#pragma unroll
        for (int n = 0; n < kWidth / 8; ++n) {
          out[m][n][2 * half] *= correction;
          out[m][n][2 * half + 1] *= correction;
        }
      }
    }
  }

  // Computes unnormalised probabilities as left operands of the next product.
  SHOAL_DEVICE void Softmax(float scale, const float (&scores)[kStrips][kKeyTiles][4],
                            uint32_t (&probabilities)[kStrips][kKeyTiles / 2][4]) {
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shift = reference[m][half] * scale;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          const float left = Exp2Approximate(scores[m][n][2 * half] * scale - shift);
          const float right = Exp2Approximate(scores[m][n][2 * half + 1] * scale - shift);
          total += left + right;
          probabilities[m][n / 2][n % 2 * 2 + half] = PackBf16(left, right);
        }
        sum[m][half] += total;
      }
    }
  }

  SHOAL_DEVICE void AddValues(const Bf16* value_lane,
                              const uint32_t (&probabilities)[kStrips][kKeyTiles / 2][4]) {
#pragma unroll
    for (int k = 0; k < kKeyTiles / 2; ++k) {
#pragma unroll
      for (int n = 0; n < kWidth / 8; n += 2) {
        uint32_t values[4];
        LoadMatrixTransposed(values, value_lane + k * 16 * TilePitch(kWidth) + n * 8);
#pragma unroll
        for (int m = 0; m < kStrips; ++m) {
          MultiplyAddPair(out[m][n], out[m][n + 1], probabilities[m][k], values);
        }
      }
    }
  }
};

// Stores the results of a warp's rows, from `first_row` on.
template <int kWidth, int kKeys>
SHOAL_DEVICE void StoreForward(const AttentionForwardArgs& args, const HeadOfSequence& head,
                               int first_row, const ForwardRows<kWidth, kKeys>& own) {
  constexpr int kStrips = ForwardSizes<kWidth, kKeys>::kStrips;
  const AttentionProblem& problem = args.problem;
  const int rows = head.rows(problem);
  float factors[kStrips][2];
#pragma unroll
  for (int m = 0; m < kStrips; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = RowSum(own.sum[m][half]);
      factors[m][half] = DivideApproximate(1.0f, sum);
      const int row = first_row + m * 16 + half * 8 + LaneIndex() / 4;
      if (LaneIndex() % 4 == 0 && row < rows) {
        const int query = problem.group.Quotient(row);
        const int64_t of_head =
            head.kv_head * problem.group.size + row - query * problem.group.size;
        args.log_sum_exp[of_head * problem.tokens + head.tile.begin + query] =
            own.reference[m][half] * problem.scale + Log(sum);
      }
    }
  }
  auto* out = static_cast<Bf16*>(args.out);
  StoreRows(own.out, factors, first_row, rows, problem.head_dim,
            [&](int i) { return out + head.RowOffset(problem, args.out_stride, i); });
}

template <int kWidth, int kKeys>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kAttentionThreads, 2)
    AttentionForwardKernel(const AttentionForwardArgs args) {
  using Sizes = ForwardSizes<kWidth, kKeys>;
  constexpr int kPitch = TilePitch(kWidth);
  constexpr int kWarpRows = Sizes::kStrips * 16;
  const AttentionProblem& problem = args.problem;
  const HeadOfSequence head = HeadOfBlock(problem, BlockX());
  const int rows = head.rows(problem);
  const int first_row = head.tile.first;
  const int end_row = Smaller(rows, first_row + Sizes::kRows);
  const int first_tile = problem.FirstKey(problem.group.Quotient(first_row)) / kKeys;
  const int key_tiles = problem.group.Quotient(end_row - 1) / kKeys + 1;

  Bf16* const query_tile = reinterpret_cast<Bf16*>(DynamicShared());
  Bf16* const key_tile = query_tile + Sizes::kRows * kPitch;
  Bf16* const value_tile = key_tile + 2 * kKeys * kPitch;
  const auto* qkv = static_cast<const Bf16*>(args.qkv);
  const Bf16* const keys = qkv + head.KeyOffset(problem, args.qkv_stride, 0);
  const auto copy_keys = [&](int tile) {
    const int half = tile % 2 * kKeys * kPitch;
    CopyKeys<kKeys, kWidth>(keys, args.qkv_stride, problem.kv_heads * problem.head_dim,
                            tile * kKeys, head.tile.length, problem.head_dim, key_tile + half,
                            value_tile + half);
    CommitCopies();
  };
  CopyRows<Sizes::kRows, kWidth, 1>(problem, head, first_row, {{qkv, args.qkv_stride, query_tile}});
  copy_keys(first_tile);

  const int warp_row = WarpIndex() * kWarpRows;  // within the tile
  const int warp_end = Smaller(rows, first_row + warp_row + kWarpRows);
  // The tiles that the warp's rows see, [own_first, own_tiles), and those that all of them see
  // whole, [whole_first, masked_tile).
  const int own_tiles =
      first_row + warp_row < rows ? problem.group.Quotient(warp_end - 1) / kKeys + 1 : 0;
  const int first_query = problem.group.Quotient(first_row + warp_row);
  const int own_first = problem.FirstKey(first_query) / kKeys;
  const int masked_tile = (first_query + 1) / kKeys;
  const int whole_first =
      (problem.FirstKey(problem.group.Quotient(first_row + warp_row + kWarpRows - 1)) + kKeys - 1) /
      kKeys;
  const Bf16* const query_lane = RowsFirst<kWidth>(query_tile + warp_row * kPitch);
  ForwardRows<kWidth, kKeys> own = {};
#pragma unroll
  for (int m = 0; m < Sizes::kStrips; ++m) {
    own.reference[m][0] = own.kNoReference;
    own.reference[m][1] = own.kNoReference;
  }
  if constexpr (Sizes::kQueriesHeld) {
    WaitCopies<0>();
    SyncBlock();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      own.LoadQueries(query_lane, k, k);
    }
  }

  const float scale = problem.scale * kLog2OfE;
  for (int tile = first_tile; tile < key_tiles; ++tile) {
    WaitCopies<0>();
    SyncBlock();
    if (tile + 1 < key_tiles) {
      copy_keys(tile + 1);
    }
    if (tile >= own_first && tile < own_tiles) {
      const int half = tile % 2 * kKeys * kPitch;
      float scores[Sizes::kStrips][kKeys / 8][4];
      own.Scores(query_lane, ColumnsFirst<kWidth>(key_tile + half), scores);
      if (tile < whole_first || tile >= masked_tile) {
        own.Mask(first_row + warp_row, problem.group, problem.window, tile * kKeys, scores);
      }
      uint32_t probabilities[Sizes::kStrips][kKeys / 16][4];
      own.RaiseReferences(scale, scores);
      own.Softmax(scale, scores, probabilities);
      own.AddValues(RowsFirst<kWidth>(value_tile + half), probabilities);
    }
  }

  StoreForward(args, head, first_row + warp_row, own);
}

template <int kWidth, int kKeys>
cudaError_t LaunchForward(cudaStream_t stream, const AttentionForwardArgs& args) {
  return Launch(stream, {.x = args.problem.blocks()}, kAttentionThreads, args.tiles.forward_bytes(),
                AttentionForwardKernel<kWidth, kKeys>, args);
}

}  // namespace

cudaError_t AttentionForward(cudaStream_t stream, const AttentionForwardArgs& args) {
  return WithWidth(args.tiles.width, [&]<int kWidth>() {
    constexpr int kMost = LargeAttentionTiles(kWidth).forward_keys;
    constexpr int kLeast = SmallAttentionTiles(kWidth).forward_keys;
    return args.tiles.forward_keys == kMost ? LaunchForward<kWidth, kMost>(stream, args)
                                            : LaunchForward<kWidth, kLeast>(stream, args);
  });
}

}  // namespace shoal::worker::cuda
