#include "core/gpu/kernel/kernel.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/kernels/tiling.h"
#include "worker/ops/cuda/kernels/token_sort.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kDigitBits = 9;
constexpr int kDigits = 1 << kDigitBits;
// Tokens of one block, one per thread; each compares with all of them, in shared memory.
constexpr int kTile = kDigits;

struct Pass {
  const int32_t* ids;
  const int32_t* positions;  // null: 0, 1, 2, ...
  int64_t count;
  int shift;
  int64_t tiles;
};

SHOAL_DEVICE int DigitOf(int32_t id, int shift) {
  return static_cast<int>(static_cast<uint32_t>(id) >> shift) & (kDigits - 1);
}

// Sums the values of the lanes up to and including this one.
SHOAL_DEVICE int SumUpTo(int value) {
  const int lane = LaneIndex();
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int before = Shuffle(value, lane >= distance ? lane - distance : lane);
    value += lane >= distance ? before : 0;
  }
  return value;
}

// Sums the values of the block's threads before this one. All threads of the block must call it;
// `shared` is used only during the call.
SHOAL_DEVICE int SumBefore(int value, int (&shared)[kTile / kWarp]) {
  const int up_to = SumUpTo(value);
  if (LaneIndex() == kWarp - 1) {
    shared[WarpIndex()] = up_to;
  }
  SyncBlock();
  int before = up_to - value;
  for (int warp = 0; warp < WarpIndex(); ++warp) {
    before += shared[warp];
  }
  return before;
}

// counts[digit, tile]: how often the digit is in the tile.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kTile, 2) CountKernel(Pass pass, int32_t* counts) {
  SHOAL_SHARED int digits[kTile];
  const int64_t at = int64_t{BlockX()} * kTile + ThreadIndex();
  digits[ThreadIndex()] = at < pass.count ? DigitOf(pass.ids[at], pass.shift) : -1;
  SyncBlock();
  int count = 0;
#pragma unroll 16
  for (int i = 0; i < kTile; ++i) {
    count += digits[i] == ThreadIndex() ? 1 : 0;
  }
  counts[ThreadIndex() * pass.tiles + BlockX()] = count;
}

// One warp per digit: turns counts of tiles into sums over earlier tiles; totals[digit] over all.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    ScanKernel(int64_t tiles, int32_t* counts, int32_t* totals) {
  const int digit = BlockX() * kBlockWarps + WarpIndex();
  int32_t* row = counts + digit * tiles;
  int before = 0;
  for (int64_t start = 0; start < tiles; start += kWarp) {
    const int64_t tile = start + LaneIndex();
    const int count = tile < tiles ? row[tile] : 0;
    const int up_to = SumUpTo(count);
    if (tile < tiles) {
      row[tile] = before + up_to - count;
    }
    before += Shuffle(up_to, kWarp - 1);
  }
  if (LaneIndex() == 0) {
    totals[digit] = before;
  }
}

// Puts each token in its place: after all smaller digits, equal ones of earlier tiles, and equal
// ones before it in its tile.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kTile, 2)
    PlaceKernel(Pass pass, const int32_t* counts, const int32_t* totals, int32_t* ids,
                int32_t* positions) {
  SHOAL_SHARED int digits[kTile];
  SHOAL_SHARED int starts[kDigits];
  SHOAL_SHARED int of_warps[kTile / kWarp];
  const int thread = ThreadIndex();
  const int64_t at = int64_t{BlockX()} * kTile + thread;
  const bool valid = at < pass.count;
  const int32_t id = valid ? pass.ids[at] : 0;
  const int digit = valid ? DigitOf(id, pass.shift) : -1;
  digits[thread] = digit;
  const int smaller = SumBefore(totals[thread], of_warps);
  starts[thread] = smaller + counts[thread * pass.tiles + BlockX()];
  SyncBlock();
  int earlier = 0;
#pragma unroll 16
  for (int i = 0; i < kTile; ++i) {
    earlier += i < thread && digits[i] == digit ? 1 : 0;
  }
  if (valid) {
    const int place = starts[digit] + earlier;
    ids[place] = id;
    positions[place] = pass.positions == nullptr ? static_cast<int32_t>(at) : pass.positions[at];
  }
}

// Tokens that a warp places: it reads all tokens once for several.
constexpr int kTokensPerWarp = 4;

// A token's place is the number of tokens before it in the order.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kBlockThreads, 4)
    RankKernel(const int32_t* tokens, int count, int32_t* ids, int32_t* positions) {
  const int first = (BlockX() * kBlockWarps + WarpIndex()) * kTokensPerWarp;
  int32_t mine[kTokensPerWarp];
  int before[kTokensPerWarp] = {};
#pragma unroll
  for (int i = 0; i < kTokensPerWarp; ++i) {
    mine[i] = first + i < count ? tokens[first + i] : 0;
  }
  int at = LaneIndex();
  // Among equal ids the earlier position comes first. Three loops: tokens before the warp's, its
  // own, and those after.
#pragma unroll 8
  for (; at < first && at < count; at += kWarp) {
    const int32_t token = tokens[at];
#pragma unroll
    for (int i = 0; i < kTokensPerWarp; ++i) {
      before[i] += token <= mine[i] ? 1 : 0;
    }
  }
  if (at < first + kTokensPerWarp && at < count) {
    const int32_t token = tokens[at];
#pragma unroll
    for (int i = 0; i < kTokensPerWarp; ++i) {
      before[i] += token < mine[i] + (at < first + i ? 1 : 0) ? 1 : 0;
    }
    at += kWarp;
  }
#pragma unroll 8
  for (; at < count; at += kWarp) {
    const int32_t token = tokens[at];
#pragma unroll
    for (int i = 0; i < kTokensPerWarp; ++i) {
      before[i] += token < mine[i] ? 1 : 0;
    }
  }
#pragma unroll
  for (int i = 0; i < kTokensPerWarp; ++i) {
    const int place = Shuffle(SumUpTo(before[i]), kWarp - 1);
    if (LaneIndex() == 0 && first + i < count) {
      ids[place] = mine[i];
      positions[place] = first + i;
    }
  }
}

int64_t Tiles(int64_t count) { return DivideUp(count, kTile); }

}  // namespace

int64_t TokenSortScratch(int64_t count) {
  return static_cast<int64_t>(sizeof(int32_t)) * (4 * count + kDigits * (Tiles(count) + 1));
}

cudaError_t SortTokens(cudaStream_t stream, const int32_t* tokens, int64_t count,
                       int64_t vocabulary, void* scratch, SortedTokens* sorted) {
  const int64_t tiles = Tiles(count);
  auto* const pairs = static_cast<int32_t*>(scratch);
  if (count <= kTokensToCount) {
    *sorted = {pairs, pairs + count};
    return Launch(stream, {.x = DivideUp(count, kBlockWarps * kTokensPerWarp)}, kBlockThreads, 0,
                  RankKernel, tokens, static_cast<int>(count), pairs, pairs + count);
  }
  int32_t* const counts = pairs + 4 * count;
  int32_t* const totals = counts + kDigits * tiles;
  Pass pass = {.ids = tokens, .positions = nullptr, .count = count, .shift = 0, .tiles = tiles};
  for (int64_t side = 0; pass.shift == 0 || (vocabulary - 1) >> pass.shift != 0; side ^= 1) {
    int32_t* const ids = pairs + 2 * side * count;
    int32_t* const positions = ids + count;
    cudaError_t error = Launch(stream, {.x = tiles}, kTile, 0, CountKernel, pass, counts);
    if (error == cudaSuccess) {
      error = Launch(stream, {.x = kDigits / kBlockWarps}, kBlockThreads, 0, ScanKernel, tiles,
                     counts, totals);
    }
    if (error == cudaSuccess) {
      error = Launch(stream, {.x = tiles}, kTile, 0, PlaceKernel, pass,
                     static_cast<const int32_t*>(counts), static_cast<const int32_t*>(totals), ids,
                     positions);
    }
    if (error != cudaSuccess) {
      return error;
    }
    pass.ids = ids;
    pass.positions = positions;
    pass.shift += kDigitBits;
  }
  *sorted = {pass.ids, pass.positions};
  return cudaSuccess;
}

}  // namespace shoal::worker::cuda
