// Random schedules and costs for property tests, here and of the runtime.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/random.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/offload.h"
#include "core/plan/schedule/schedule_costs.h"

namespace shoal::plan {

struct ScheduleLimits {
  int stages = 32;
  int chunks = 8;
  int microbatches = 64;
};

// From any builder; small shapes are as likely as large ones.
inline Schedule RandomSchedule(Random& random, ScheduleLimits limits = {}) {
  const auto up_to = [&](int most) {
    return static_cast<int>(random.Between(1, random.Between(1, most)));
  };
  const int stages = up_to(limits.stages);
  const int chunks = up_to(limits.chunks);
  const int microbatches = up_to(limits.microbatches);
  switch (random.Below(limits.chunks >= 2 ? 10 : 7)) {
    case 0:
      return stages == 1 ? GradientAccumulation(chunks, microbatches)
                         : GPipe(stages, chunks, microbatches);
    case 1:
      return OneForwardOneBackward(stages, microbatches);
    case 2:
      return InterleavedOneForwardOneBackward(stages, chunks, microbatches);
    case 3:
      return GroupedInterleaved(stages, chunks, microbatches,
                                static_cast<int>(random.Between(SmallestGroup(stages), stages)));
    case 4:
      return UniformPipe(stages, chunks, microbatches);
    case 5:
      return ZeroBubbleH1(stages, microbatches);
    case 6:
      return ZeroBubbleH2(stages, microbatches);
    case 7:
      return ZeroBubbleV(stages, microbatches);
    case 8:
      return VHalf(stages, microbatches);
    default:
      return VMin(stages, microbatches);
  }
}

// Microbatches of unequal lengths through chunks of unequal sizes; an offload moves all of a
// chunk's activations. `copying` is roughly the time of a copy divided by that of a forward. Bytes
// are multiples of `alignment`; one chunk in eight has none.
inline ScheduleCosts RandomCosts(Random& random, const ScheduleShape& shape, double copying,
                                 int64_t alignment = 1) {
  ScheduleCosts costs(shape, {});
  std::vector<double> lengths(static_cast<size_t>(shape.microbatches));
  std::ranges::generate(lengths, [&] { return 0.1 + random.Uniform(); });
  for (int virtual_stage = 0; virtual_stage < shape.VirtualStages(); ++virtual_stage) {
    const auto [stage, chunk] = shape.At(virtual_stage);
    const double size = random.Below(8) == 0 ? 0 : 0.5 + random.Uniform();
    const double weights = random.Uniform();
    for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
      const double length = lengths[static_cast<size_t>(microbatch)];
      const double seconds = length * (0.1 + size);
      const auto bytes = [&](double count) {
        return static_cast<int64_t>(count * length * size) * alignment;
      };
      costs.Of(stage, chunk, microbatch) = {.forward = seconds,
                                            .backward_input = 1.5 * seconds,
                                            .backward_weights = seconds * weights,
                                            .offload = copying * length * size,
                                            .reload = copying * length * size,
                                            .send_activation = 0.1 * length,
                                            .send_gradient = 0.1 * length,
                                            .activation_bytes = bytes(1000),
                                            .offload_bytes = bytes(1000),
                                            .gradient_bytes = bytes(300)};
    }
  }
  return costs;
}

// Chooses three of four of those that have any bytes.
inline OffloadChoice RandomChoice(Random& random, const ScheduleShape& shape,
                                  const ScheduleCosts& costs) {
  OffloadChoice choice = FirstChunks(shape, 0);
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (size_t key = 0; key < choice[stage].size(); ++key) {
      const ChunkCost& cost = costs.Of(stage, static_cast<int>(key) / shape.microbatches,
                                       static_cast<int>(key) % shape.microbatches);
      choice[stage][key] = cost.offload_bytes > 0 && random.Below(4) != 0;
    }
  }
  return choice;
}

}  // namespace shoal::plan
