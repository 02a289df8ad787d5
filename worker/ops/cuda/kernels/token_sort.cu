#include "worker/backend/cuda/kernel.h"
#include "worker/ops/cuda/kernels/tiling.h"
#include "worker/ops/cuda/kernels/token_sort.h"

namespace shoal::worker::cuda {
namespace {

constexpr int kDigitBits = 9;
constexpr int kDigits = 1 << kDigitBits;
// Tokens of one block, one a thread; each looks at all of them, in shared memory.
constexpr int kTile = kDigits;
constexpr int kScanThreads = 256;

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

// The sum of the values of the threads before this one. All threads of the block come here, at most
// kThreads of them.
template <int kThreads>
SHOAL_DEVICE int SumBefore(int value, int (&shared)[kThreads]) {
  const int thread = ThreadIndex();
  shared[thread] = value;
  SyncBlock();
  for (int distance = 1; distance < kThreads; distance *= 2) {
    const int before = thread >= distance ? shared[thread - distance] : 0;
    SyncBlock();
    shared[thread] += before;
    SyncBlock();
  }
  return shared[thread] - value;
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

// A block a digit: counts of tiles to sums over the tiles before; totals[digit] over all.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kScanThreads, 4)
    ScanKernel(int64_t tiles, int32_t* counts, int32_t* totals) {
  SHOAL_SHARED int shared[kScanThreads];
  const int64_t per_thread = (tiles + kScanThreads - 1) / kScanThreads;
  const int64_t first = ThreadIndex() * per_thread;
  const int64_t last = first + per_thread < tiles ? first + per_thread : tiles;
  int32_t* row = counts + BlockX() * tiles;
  int sum = 0;
  for (int64_t tile = first; tile < last; ++tile) {
    sum += row[tile];
  }
  int before = SumBefore(sum, shared);
  for (int64_t tile = first; tile < last; ++tile) {
    const int count = row[tile];
    row[tile] = before;
    before += count;
  }
  if (ThreadIndex() == kScanThreads - 1) {
    totals[BlockX()] = before;
  }
}

// Each token to its place: after all smaller digits, equal ones of tiles before, and equal ones
// before it in its tile.
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kTile, 2)
    PlaceKernel(Pass pass, const int32_t* counts, const int32_t* totals, int32_t* ids,
                int32_t* positions) {
  SHOAL_SHARED int digits[kTile];
  SHOAL_SHARED int starts[kDigits];
  const int thread = ThreadIndex();
  const int64_t at = int64_t{BlockX()} * kTile + thread;
  const bool valid = at < pass.count;
  const int32_t id = valid ? pass.ids[at] : 0;
  const int digit = valid ? DigitOf(id, pass.shift) : -1;
  digits[thread] = digit;
  const int smaller = SumBefore(totals[thread], starts);
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

int64_t Tiles(int64_t count) { return DivideUp(count, kTile); }

}  // namespace

int64_t TokenSortScratch(int64_t count) {
  return static_cast<int64_t>(sizeof(int32_t)) * (4 * count + kDigits * (Tiles(count) + 1));
}

cudaError_t SortTokens(cudaStream_t stream, const int32_t* tokens, int64_t count,
                       int64_t vocabulary, void* scratch, SortedTokens* sorted) {
  const int64_t tiles = Tiles(count);
  auto* const pairs = static_cast<int32_t*>(scratch);
  int32_t* const counts = pairs + 4 * count;
  int32_t* const totals = counts + kDigits * tiles;
  Pass pass = {.ids = tokens, .positions = nullptr, .count = count, .shift = 0, .tiles = tiles};
  for (int64_t side = 0; pass.shift == 0 || (vocabulary - 1) >> pass.shift != 0; side ^= 1) {
    int32_t* const ids = pairs + 2 * side * count;
    int32_t* const positions = ids + count;
    cudaError_t error = Launch(stream, {.x = tiles}, kTile, 0, CountKernel, pass, counts);
    if (error == cudaSuccess) {
      error = Launch(stream, {.x = kDigits}, kScanThreads, 0, ScanKernel, tiles, counts, totals);
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
