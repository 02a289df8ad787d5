#include "worker/ops/cpu/amx_tiles.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
// GCC 12's AVX-512 intrinsics start from a register that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

// AMX comes with AVX-512.
#define SHOAL_TARGET_AVX512 [[gnu::target("avx512f,avx512bw,avx512vl")]]

namespace shoal::worker::cpu {
namespace {

// Packs two tiles: 32 rows by 32 of k.
using TilePacker = void (*)(const BFloat16* from, int64_t stride, BFloat16* tiles);

// tiles[row][k] = from[row][k]
SHOAL_TARGET_AVX512 void CopyTiles(const BFloat16* from, int64_t stride, BFloat16* tiles) {
  for (int64_t row = 0; row < 2 * kTileRows; ++row) {
    _mm512_store_si512(tiles + row * kTileDepth, _mm512_loadu_si512(from + row * stride));
  }
}

// Indexes the elements of two rows of 32 that make 16 pairs from column `first` on.
struct alignas(64) PairIndex {
  uint16_t from[32];
  explicit constexpr PairIndex(uint16_t first) : from() {
    for (uint16_t j = 0; j < 16; ++j) {
      from[2 * j] = static_cast<uint16_t>(first + j);
      from[2 * j + 1] = static_cast<uint16_t>(32 + first + j);
    }
  }
};

// tiles[column / 16][pair][column % 16, 2] = from[2 pair and 2 pair + 1][column]
SHOAL_TARGET_AVX512 void PairTiles(const BFloat16* from, int64_t stride, BFloat16* tiles) {
  static constexpr PairIndex kLeft(0);
  static constexpr PairIndex kRight(16);
  const __m512i left = _mm512_load_si512(kLeft.from);
  const __m512i right = _mm512_load_si512(kRight.from);
  for (int64_t pair = 0; pair < kTileDepth / 2; ++pair, tiles += kTileDepth) {
    const __m512i even = _mm512_loadu_si512(from + 2 * pair * stride);
    const __m512i odd = _mm512_loadu_si512(from + (2 * pair + 1) * stride);
    _mm512_store_si512(tiles, _mm512_permutex2var_epi16(even, left, odd));
    _mm512_store_si512(tiles + kTileElements, _mm512_permutex2var_epi16(even, right, odd));
  }
}

// tile[pair][column, 2] = from[column][2 pair, 2 pair + 1]: 16 x 16 pairs transposed.
SHOAL_TARGET_AVX512 void TurnPairs(const BFloat16* from, int64_t stride, BFloat16* tile) {
  __m512i a[16];
  __m512i b[16];
  for (int64_t i = 0; i < 16; ++i) {
    a[i] = _mm512_loadu_si512(from + i * stride);
  }
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // Now a[4 g + c] holds pairs c, 4 + c, 8 + c and 12 + c of columns 4 g to 4 g + 3.
  for (int c = 0; c < 4; ++c) {
    b[c] = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);
    b[4 + c] = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
    b[8 + c] = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    b[12 + c] = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
  }
  for (int64_t c = 0; c < 4; ++c) {
    BFloat16* to = tile + c * kTileDepth;
    _mm512_store_si512(to, _mm512_shuffle_i32x4(b[c], b[8 + c], 0x88));
    _mm512_store_si512(to + 4 * kTileDepth, _mm512_shuffle_i32x4(b[4 + c], b[12 + c], 0x88));
    _mm512_store_si512(to + 8 * kTileDepth, _mm512_shuffle_i32x4(b[c], b[8 + c], 0xdd));
    _mm512_store_si512(to + 12 * kTileDepth, _mm512_shuffle_i32x4(b[4 + c], b[12 + c], 0xdd));
  }
}

void TurnPairsOfTiles(const BFloat16* from, int64_t stride, BFloat16* tiles) {
  TurnPairs(from, stride, tiles);
  TurnPairs(from + kTileRows * stride, stride, tiles + kTileElements);
}

// tiles[row][k] = from[k][row]
void TurnTiles(const BFloat16* from, int64_t stride, BFloat16* tiles) {
  alignas(64) BFloat16 pairs[2 * kTileElements];
  PairTiles(from, stride, pairs);
  TurnPairs(pairs, kTileDepth, tiles);
  TurnPairs(pairs + kTileElements, kTileDepth, tiles + kTileElements);
}

// Packs tiles that reach over the matrix's edge, from a copy padded with zeros.
void PackEdge(const TileSource& source, const BFloat16* from, int64_t rows, int64_t depth,
              TilePacker pack, BFloat16* tiles) {
  BFloat16 copy[kTileDepth * kTileDepth] = {};
  const int64_t lines = source.k_major ? depth : rows;
  const int64_t elements = source.k_major ? rows : depth;
  for (int64_t line = 0; line < lines; ++line) {
    std::memcpy(copy + line * kTileDepth, from + line * source.stride,
                static_cast<size_t>(elements) * sizeof(BFloat16));
  }
  pack(copy, kTileDepth, tiles);
}

// Walks along the lines of the operand as stored.
void Pack(const TileSource& source, int64_t first, int64_t panels, TilePacker pack,
          BFloat16* tiles) {
  static_assert(2 * kTileRows == kTileDepth);  // blocks are square
  const int64_t deep = TilesDeep(source.depth);
  const int64_t outer = source.k_major ? deep : panels;
  const int64_t inner = source.k_major ? panels : deep;
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      const int64_t panel = source.k_major ? j : i;
      const int64_t k = source.k_major ? i : j;
      BFloat16* const to = tiles + (panel * deep + k) * 2 * kTileElements;
      const int64_t row = first + panel * kTileDepth;
      const int64_t line = source.k_major ? k * kTileDepth : row;
      const BFloat16* const from =
          source.data + line * source.stride + (source.k_major ? row : k * kTileDepth);
      const int64_t rows = std::min(kTileDepth, source.rows - row);
      const int64_t depth = std::min(kTileDepth, source.depth - k * kTileDepth);
      if (rows == kTileDepth && depth == kTileDepth) {
        pack(from, source.stride, to);
      } else {
        PackEdge(source, from, rows, depth, pack, to);
      }
    }
  }
}

}  // namespace

void PackA(const TileSource& source, int64_t first, int64_t panels, BFloat16* tiles) {
  Pack(source, first, panels, source.k_major ? TurnTiles : CopyTiles, tiles);
}

void PackB(const TileSource& source, int64_t first, int64_t panels, BFloat16* tiles) {
  Pack(source, first, panels, source.k_major ? PairTiles : TurnPairsOfTiles, tiles);
}

}  // namespace shoal::worker::cpu
#endif
