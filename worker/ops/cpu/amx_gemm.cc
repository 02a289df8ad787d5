#include "worker/ops/cpu/amx_gemm.h"

#include "worker/ops/cpu/amx_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "worker/ops/cpu/instructions.h"

#define SHOAL_TARGET_AMX [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")]]

namespace shoal::worker::cpu {
namespace {

// Products work on panels of 32 rows of A and 32 columns of B: 2 x 2 tiles of C.
constexpr int64_t kPanel = 2 * kTileRows;
constexpr int64_t kLine = 64;  // bytes of a cache line, and of a tile's row
// Bytes of packed A used against all of B: a quarter of the second-level cache of the CPUs that
// have AMX, and in any case enough panels to make fetching those of B worthwhile.
constexpr int64_t kBlockBytes = int64_t{512} << 10;
constexpr int64_t kFewestPanels = 8;
// Bytes of packed B kept at a time: whole matrices of small models, parts of those with a large
// vocabulary. A is packed once for each part.
constexpr int64_t kPartBytes = int64_t{16} << 20;

// What ldtilecfg reads: all eight tiles are 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Memory for tiles, one per thread.
class TileMemory {
 public:
  BFloat16* Reserve(int64_t tiles) {
    if (tiles > capacity_) {
      data_.reset();
      capacity_ = 0;
      data_.reset(static_cast<BFloat16*>(
          std::aligned_alloc(64, static_cast<size_t>(tiles * kTileElements) * sizeof(BFloat16))));
      if (data_ == nullptr) {
        throw std::bad_alloc();
      }
      capacity_ = tiles;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(BFloat16* data) const { std::free(data); }
  };
  std::unique_ptr<BFloat16, Free> data_;
  int64_t capacity_ = 0;
};

// A block of C to prefetch during its products, two rows per step. Into the second-level cache:
// rows a power of two apart would evict each other, and the tiles, from the first.
struct Wanted {
  const char* row;
  int64_t step;       // bytes to the next row
  int64_t last_line;  // bytes to the last line of a row
};

// out[32, 32] = a panel of A times one of B. Dense, because tiles stored straight to C, whose rows
// are often a power of two apart, would wait for each other's cache lines.
SHOAL_TARGET_AMX void MultiplyPanels(const BFloat16* a, const BFloat16* b, int64_t tiles_deep,
                                     Wanted wanted, float* out) {
  constexpr size_t kStep = kPanel * sizeof(float);
  // The compiler does not know that loading a tile reads memory.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < tiles_deep; ++k) {
    _tile_loadd(4, a, kLine);
    _tile_loadd(6, b, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTileElements, kLine);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTileElements, kLine);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += 2 * kTileElements;
    b += 2 * kTileElements;
    if (k < kPanel / 2) {
      for (int row = 0; row < 2; ++row, wanted.row += wanted.step) {
        _mm_prefetch(wanted.row, _MM_HINT_T1);
        _mm_prefetch(wanted.row + wanted.last_line, _MM_HINT_T1);
      }
    }
  }
  _tile_stored(0, out, kStep);
  _tile_stored(1, out + kTileRows, kStep);
  _tile_stored(2, out + kTileRows * kPanel, kStep);
  _tile_stored(3, out + kTileRows * kPanel + kTileRows, kStep);
}

// Stores the part of a 32 x 32 result that is inside C, 32 columns of it.
SHOAL_TARGET_AMX void StoreRounded(const float* from, int64_t rows, BFloat16* to, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row, from += kPanel, to += stride) {
    const __m512bh rounded =
        _mm512_cvtne2ps_pbh(_mm512_load_ps(from + kTileRows), _mm512_load_ps(from));
    _mm512_storeu_si512(to, reinterpret_cast<const __m512i&>(rounded));
  }
}

SHOAL_TARGET_AMX void StoreSums(const float* from, int64_t rows, bool accumulate, float* to,
                                int64_t stride) {
  for (int64_t row = 0; row < rows; ++row, from += kPanel, to += stride) {
    __m512 low = _mm512_load_ps(from);
    __m512 high = _mm512_load_ps(from + kTileRows);
    if (accumulate) {
      low = _mm512_add_ps(_mm512_loadu_ps(to), low);
      high = _mm512_add_ps(_mm512_loadu_ps(to + kTileRows), high);
    }
    _mm512_storeu_ps(to, low);
    _mm512_storeu_ps(to + kTileRows, high);
  }
}

// Same as above for fewer columns.
void StoreEdge(const GemmShape& shape, const float* from, int64_t rows, int64_t columns, void* c,
               int64_t first) {
  for (int64_t row = 0; row < rows; ++row, from += kPanel, first += shape.c_stride) {
    for (int64_t j = 0; j < columns; ++j) {
      if (shape.output == DType::kBF16) {
        static_cast<BFloat16*>(c)[first + j] = BFloat16(from[j]);
      } else {
        float& element = static_cast<float*>(c)[first + j];
        element = from[j] + (shape.accumulate ? element : 0.0f);
      }
    }
  }
}

// Computes C's 32 x 32 block at (row, column).
void Block(const GemmShape& shape, const BFloat16* a, const BFloat16* b, int64_t row,
           int64_t column, void* c) {
  const int64_t first = row * shape.c_stride + column;
  const int64_t rows = std::min(kPanel, shape.m - row);
  const int64_t columns = std::min(kPanel, shape.n - column);
  const int64_t size = SizeOf(shape.output);
  const Wanted wanted{static_cast<const char*>(c) + first * size, shape.c_stride * size,
                      (kPanel * size - 1) / kLine * kLine};
  alignas(64) float part[kPanel * kPanel];
  MultiplyPanels(a, b, TilesDeep(shape.k), wanted, part);
  if (columns < kPanel) {
    StoreEdge(shape, part, rows, columns, c, first);
  } else if (shape.output == DType::kBF16) {
    StoreRounded(part, rows, static_cast<BFloat16*>(c) + first, shape.c_stride);
  } else {
    StoreSums(part, rows, shape.accumulate, static_cast<float*>(c) + first, shape.c_stride);
  }
}

SHOAL_TARGET_AMX void Configure() {
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
}

SHOAL_TARGET_AMX void Release() { _tile_release(); }

int64_t Panels(int64_t rows) { return (rows + kPanel - 1) / kPanel; }

}  // namespace

bool HasAmx() {
  static const bool has = [] {
    constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
    return HasNativeBf16() && HasAmxInstructions() &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

bool AmxTakes(const GemmShape& shape) {
  return shape.input == DType::kBF16 && shape.m >= kTileRows && shape.n >= kTileRows &&
         shape.k >= kTileRows && HasAmx();
}

void AmxGemm(const GemmShape& shape, const void* a, const void* b, void* c) {
  const TileSource rows{static_cast<const BFloat16*>(a), shape.a_stride, shape.m, shape.k,
                        shape.transpose_a};
  const TileSource columns{static_cast<const BFloat16*>(b), shape.b_stride, shape.n, shape.k,
                           !shape.transpose_b};
  const int64_t deep = TilesDeep(shape.k);
  const int64_t panel = 2 * deep * kTileElements;
  const int64_t block =
      std::min(Panels(shape.m), std::max(kFewestPanels, kBlockBytes / (panel * 2)));
  const int64_t part = std::clamp<int64_t>(kPartBytes / (panel * 2), 1, Panels(shape.n));
  thread_local TileMemory a_memory;
  thread_local TileMemory b_memory;
  BFloat16* const a_tiles = a_memory.Reserve(block * 2 * deep);
  BFloat16* const b_tiles = b_memory.Reserve(part * 2 * deep);
  Configure();
  for (int64_t column = 0; column < Panels(shape.n); column += part) {
    const int64_t wide = std::min(part, Panels(shape.n) - column);
    PackB(columns, column * kPanel, wide, b_tiles);
    for (int64_t row = 0; row < Panels(shape.m); row += block) {
      const int64_t high = std::min(block, Panels(shape.m) - row);
      PackA(rows, row * kPanel, high, a_tiles);
      for (int64_t j = 0; j < wide; ++j) {
        for (int64_t i = 0; i < high; ++i) {
          Block(shape, a_tiles + i * panel, b_tiles + j * panel, (row + i) * kPanel,
                (column + j) * kPanel, c);
        }
      }
    }
  }
  Release();
}

}  // namespace shoal::worker::cpu

#else

namespace shoal::worker::cpu {

bool HasAmx() { return false; }
bool AmxTakes(const GemmShape&) { return false; }
void AmxGemm(const GemmShape&, const void*, const void*, void*) {}

}  // namespace shoal::worker::cpu

#endif
