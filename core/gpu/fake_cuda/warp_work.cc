#include "core/gpu/fake_cuda/warp_work.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace shoal::gpu::fake_cuda {
namespace {

constexpr size_t kRows = 16;       // of a and d
constexpr size_t kDepth = 16;      // columns of a, rows of b
constexpr size_t kColumns = 8;     // of b and d
constexpr size_t kRowsAtOnce = 4;  // their sums stay in registers

// A row of d or b.
using Row __attribute__((vector_size(kColumns * sizeof(float)))) = float;

float Low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float High(uint32_t pair) { return std::bit_cast<float>(pair & 0xFFFF0000u); }

}  // namespace

void FinishShuffle(Lanes& lanes) {
  for (Operands& lane : lanes) {
    *lane.to = lanes[static_cast<size_t>(lane.from_lane & (kWarp - 1))].value;
  }
}

void FinishLoadMatrix(Lanes& lanes, bool transposed) {
  for (size_t l = 0; l < kWarp; ++l) {
    for (size_t i = 0; i < 4; ++i) {
      const size_t r = l / 4;
      const size_t c = 2 * (l % 4);
      const auto element = [&](size_t row, size_t column) {
        uint16_t bits = 0;
        std::memcpy(&bits, static_cast<const char*>(lanes[8 * i + row].row) + 2 * column, 2);
        return static_cast<uint32_t>(bits);
      };
      lanes[l].to[i] = transposed ? element(c, r) | element(c + 1, r) << 16
                                  : element(r, c) | element(r, c + 1) << 16;
    }
  }
}

void FinishMultiplyAdd(Lanes& lanes) {
  float a[kRows][kDepth];
  alignas(Row) float b[kDepth][kColumns];
  alignas(Row) float d[kRows][kColumns];
  for (size_t l = 0; l < kWarp; ++l) {
    const Operands& lane = lanes[l];
    const size_t g = l / 4;
    const size_t c = 2 * (l % 4);
    for (size_t i = 0; i < 4; ++i) {
      a[g + 8 * (i % 2)][c + 8 * (i / 2)] = Low(lane.a[i]);
      a[g + 8 * (i % 2)][c + 8 * (i / 2) + 1] = High(lane.a[i]);
      d[g + 8 * (i / 2)][c + i % 2] = lane.d[i];
    }
    for (size_t i = 0; i < 2; ++i) {
      b[c + 8 * i][g] = Low(lane.b[i]);
      b[c + 8 * i + 1][g] = High(lane.b[i]);
    }
  }
  for (size_t row = 0; row < kRows; row += kRowsAtOnce) {
    Row sums[kRowsAtOnce];
    std::memcpy(&sums, d[row], sizeof(sums));
    for (size_t k = 0; k < kDepth; ++k) {
      Row of_b;
      std::memcpy(&of_b, b[k], sizeof(of_b));
      for (size_t i = 0; i < kRowsAtOnce; ++i) {
        sums[i] += a[row + i][k] * of_b;
      }
    }
    std::memcpy(d[row], &sums, sizeof(sums));
  }
  for (size_t l = 0; l < kWarp; ++l) {
    for (size_t i = 0; i < 4; ++i) {
      lanes[l].d[i] = d[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
    }
  }
}

}  // namespace shoal::gpu::fake_cuda
