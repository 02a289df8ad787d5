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

// tile[row][k] = from[row][k]
SHOAL_TARGET_AVX512 void CopyTile(const BFloat16* from, int64_t stride, BFloat16* tile) {
  for (int64_t row = 0; row < kTileRows; ++row) {
    _mm512_store_si512(tile + row * kTileDepth, _mm512_loadu_si512(from + row * stride));
  }
}

// 16 elements, each in the low half of 32 bits.
SHOAL_TARGET_AVX512 __m512i LoadWide(const BFloat16* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// tile[pair][column, 2] = from[2 pair and 2 pair + 1][column]
SHOAL_TARGET_AVX512 void PairTile(const BFloat16* from, int64_t stride, BFloat16* tile) {
  for (int64_t pair = 0; pair < kTileDepth / 2; ++pair) {
    const __m512i low = LoadWide(from + 2 * pair * stride);
    const __m512i high = _mm512_slli_epi32(LoadWide(from + (2 * pair + 1) * stride), 16);
    _mm512_store_si512(tile + pair * kTileDepth, _mm512_or_si512(low, high));
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

// tile[row][k] = from[k][row]
void TurnTile(const BFloat16* from, int64_t stride, BFloat16* tile) {
  alignas(64) BFloat16 pairs[kTileElements];
  PairTile(from, stride, pairs);
  TurnPairs(pairs, kTileDepth, tile);
}

using TilePacker = void (*)(const BFloat16* from, int64_t stride, BFloat16* tile);

// A tile that reaches over the matrix's edge: packed from a copy with zeros.
void PackEdge(const TileSource& source, int64_t row, int64_t k, TilePacker pack, BFloat16* tile) {
  BFloat16 copy[kTileDepth * kTileDepth] = {};
  const int64_t rows = std::clamp<int64_t>(source.rows - row, 0, kTileRows);
  const int64_t depth = std::min(kTileDepth, source.depth - k);
  const int64_t lines = source.k_major ? depth : rows;
  const int64_t elements = source.k_major ? rows : depth;
  const int64_t first = source.k_major ? k * source.stride + row : row * source.stride + k;
  for (int64_t line = 0; elements > 0 && line < lines; ++line) {
    std::memcpy(copy + line * kTileDepth, source.data + first + line * source.stride,
                static_cast<size_t>(elements) * sizeof(BFloat16));
  }
  pack(copy, kTileDepth, tile);
}

void PackTile(const TileSource& source, int64_t row, int64_t k, TilePacker pack, BFloat16* tile) {
  if (row + kTileRows <= source.rows && k + kTileDepth <= source.depth) {
    const int64_t first = source.k_major ? k * source.stride + row : row * source.stride + k;
    pack(source.data + first, source.stride, tile);
  } else {
    PackEdge(source, row, k, pack, tile);
  }
}

// Walks along the lines in which the operand lies in memory.
void Pack(const TileSource& source, int64_t first, int64_t panels, TilePacker pack,
          BFloat16* tiles) {
  const int64_t deep = TilesDeep(source.depth);
  const int64_t outer = source.k_major ? deep : panels;
  const int64_t inner = source.k_major ? panels : deep;
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      const int64_t panel = source.k_major ? j : i;
      const int64_t k = source.k_major ? i : j;
      BFloat16* pair = tiles + (panel * deep + k) * 2 * kTileElements;
      const int64_t row = first + panel * 2 * kTileRows;
      PackTile(source, row, k * kTileDepth, pack, pair);
      PackTile(source, row + kTileRows, k * kTileDepth, pack, pair + kTileElements);
    }
  }
}

}  // namespace

void PackA(const TileSource& source, int64_t first, int64_t panels, BFloat16* tiles) {
  Pack(source, first, panels, source.k_major ? TurnTile : CopyTile, tiles);
}

void PackB(const TileSource& source, int64_t first, int64_t panels, BFloat16* tiles) {
  Pack(source, first, panels, source.k_major ? PairTile : TurnPairs, tiles);
}

}  // namespace shoal::worker::cpu
#endif
