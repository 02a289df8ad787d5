#include "core/plan/pipeline/offload_ratio.h"

#include <algorithm>

#include "core/base/check.h"

namespace shoal::plan {

double GptLayerBytes(Recompute recompute, double kv_share) {
  SHOAL_CHECK(recompute != Recompute::kFull);
  // Both norms' inputs, q, attention's output: 2 each; k and v: 2 r each; GeLU's input: 8.
  const double kept = 16 + 4 * kv_share;
  // Norms' outputs 4, GeLU's output 8, dropout masks 2.
  return recompute == Recompute::kLight ? kept : kept + 14;
}

double GptOffloadRatio(double hidden, double sequence, const GptDevice& device, double kv_share) {
  // For each token: bytes there and back; 72 h^2 (1 + s / 6h) operations.
  const double copy = 2 * GptLayerBytes(Recompute::kLight, kv_share) * hidden;
  const double compute = 72 * hidden * hidden * (1 + sequence / (6 * hidden));
  return copy / device.copy_bytes_per_second / (compute / device.flops);
}

double OffloadRatio(const ScheduleShape& shape, const ScheduleCosts& costs) {
  double ratio = 0;
  for (int stage = 0; stage < shape.stages; ++stage) {
    double copies = 0;
    double compute = 0;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
        const ChunkCost& cost = costs.Of(stage, chunk, microbatch);
        copies += cost.offload + cost.reload;
        compute += cost.Compute();
      }
    }
    ratio = std::max(ratio, compute > 0 ? copies / compute : 0);
  }
  return ratio;
}

}  // namespace shoal::plan
