#include "worker/ops/cuda/matmul/matmul_plan.h"

#include <algorithm>

#include "core/base/bytes.h"

namespace shoal::worker::cuda {
namespace {

constexpr int64_t kStage = 64;  // of k at a time
constexpr int64_t kMaxSplits = 32;

// Rough costs in clocks of a multiprocessor, only to choose a plan.
constexpr double kProductsPerClock = 1200;  // what MultiplyAdd reaches, of 2048 that wgmma does
constexpr double kBlockStart = 1500;        // first stages, and C
constexpr double kSumStart = 4000;          // second launch
constexpr double kBytesPerClock = 15;       // of device memory, a multiprocessor's share

struct Candidate {
  MatmulTile tile;
  int64_t rows;
  int64_t columns;
  int64_t blocks;  // per multiprocessor
  double efficiency;
  int64_t shared_bytes;
};
// Efficiency: larger tiles read less of shared memory for each product.
constexpr Candidate kCandidates[] = {
    {MatmulTile::k128x256, 128, 256, 1, 1.0, 144 << 10},
    {MatmulTile::k128x128, 128, 128, 2, 0.95, 96 << 10},
    {MatmulTile::k64x64, 64, 64, 4, 0.6, 48 << 10},
};

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

double Clocks(const Candidate& tile, int64_t m, int64_t n, int64_t k_per_split, int64_t splits,
              const MatmulGpu& gpu) {
  const int64_t tiles = DivideUp(m, tile.rows) * DivideUp(n, tile.columns);
  const int64_t on_busiest = DivideUp(tiles * splits, gpu.multiprocessors);
  const double products = static_cast<double>(tile.rows * tile.columns * k_per_split);
  double clocks =
      static_cast<double>(on_busiest) * products / (kProductsPerClock * tile.efficiency) +
      static_cast<double>(DivideUp(on_busiest, tile.blocks)) * kBlockStart;
  if (splits > 1) {
    // Partial sums are written and read again.
    const auto bytes = static_cast<double>(2 * splits * m * n) * sizeof(float);
    clocks += kSumStart + bytes / (kBytesPerClock * static_cast<double>(gpu.multiprocessors));
  }
  return clocks;
}

}  // namespace

MatmulPlan PlanMatmul(int64_t m, int64_t n, int64_t k, bool aligned, const MatmulGpu& gpu) {
  const int64_t stages = DivideUp(k, kStage);
  const int64_t partial_bytes = RoundUp(m * n, 4) * static_cast<int64_t>(sizeof(float));
  const int64_t most_splits =
      std::clamp(std::min(gpu.scratch_bytes / partial_bytes, stages / 4), int64_t{1}, kMaxSplits);
  MatmulPlan best;
  double best_clocks = 0;
  for (const Candidate& tile : kCandidates) {
    const bool smallest = tile.tile == MatmulTile::k64x64;
    if (!smallest && (!aligned || tile.shared_bytes > gpu.shared_bytes)) {
      continue;
    }
    for (int64_t wanted = 1; wanted <= most_splits; ++wanted) {
      const int64_t k_per_split = DivideUp(stages, wanted) * kStage;
      const int64_t splits = DivideUp(k, k_per_split);
      const double clocks = Clocks(tile, m, n, k_per_split, splits, gpu);
      if (best.k_per_split == 0 || clocks < best_clocks) {
        best = {tile.tile, static_cast<int>(splits), k_per_split};
        best_clocks = clocks;
      }
    }
  }
  return best;
}

}  // namespace shoal::worker::cuda
