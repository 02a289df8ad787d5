#include "core/plan/pipeline/offload_ratio.h"

#include <algorithm>
#include <array>

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

double BlockOffloadRatio(const PipelineModel& model, int64_t tokens, const PipelinePace& pace) {
  SHOAL_CHECK(pace.CanOffload());
  // A model's first block, as a separate chunk between two others.
  ModelSpec block = model.spec;
  block.layers = 1;
  const ScheduleShape shape{.stages = 1, .chunks = 3};
  const std::array<UnitRange, 3> split = {{{0, 1}, {1, 1}, {2, 1}}};
  const MicrobatchSize size = SizeOfSequences(std::array{tokens});
  const ScheduleCosts costs =
      PipelineCosts({.spec = block, .compute = model.compute, .recompute = model.recompute}, shape,
                    split, std::array{size}, pace);
  const ChunkCost& cost = costs.Of(0, 1, 0);
  return (cost.offload + cost.reload) / cost.Compute();
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
