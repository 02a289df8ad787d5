// The V-shaped schedules of "Pipeline Parallelism with Controllable Memory" (Qi et al. 2024): each
// stage has two chunks, the second on the way back, so that short lifespans of one make up for long
// ones of the other and all stages hold the same. The distance between passes of neighbouring
// stages determines the lifespans and thus the memory.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/fill_gaps.h"
#include "core/plan/schedule/builders/pattern.h"

namespace shoal::plan {
namespace {

constexpr int kPeriod = 6;  // slots of a microbatch: F, B and W of two chunks

// From stage to stage, in slots: the forward of chunk 0 down, of chunk 1 back, and the backwards
// the same way.
struct Distances {
  int forward_down = 1;
  int forward_back = 1;
  int backward_down = 1;
  int backward_back = 1;
};

// The first slots of one stage for microbatch 0.
struct StageSlots {
  std::array<int, 2> forward;  // by chunk
  std::array<int, 2> backward;
  std::array<int, 2> weights;
};

// Returns the slots of stage `i` with these gaps at the three turns; false if two passes would
// collide.
bool SlotsOf(int stages, int i, const Distances& by, const std::array<int, 3>& gaps,
             StageSlots& slots) {
  const int last = stages - 1;
  const int turn = by.forward_down * last + 1 + gaps[0];
  const int top = turn + by.forward_back * last + 1 + gaps[1];
  const int bottom = top + by.backward_down * last + 1 + gaps[2];
  slots.forward = {by.forward_down * i, turn + by.forward_back * (last - i)};
  slots.backward = {bottom + by.backward_back * (last - i), top + by.backward_down * i};
  std::array<bool, kPeriod> taken{};
  for (const int slot :
       {slots.forward[0], slots.forward[1], slots.backward[1], slots.backward[0]}) {
    if (std::exchange(taken[slot % kPeriod], true)) {
      return false;
    }
  }
  for (const int chunk : {1, 0}) {
    int slot = slots.backward[chunk] + 1;
    while (taken[slot % kPeriod]) {
      ++slot;
    }
    taken[slot % kPeriod] = true;
    slots.weights[chunk] = slot;
  }
  return true;
}

// Finds the smallest gaps at the turns with which passes collide on no stage.
std::vector<StageSlots> PatternOf(int stages, const Distances& by) {
  std::vector<std::array<int, 3>> all;
  for (int first = 0; first < kPeriod; ++first) {
    for (int second = 0; second < kPeriod; ++second) {
      for (int third = 0; third < kPeriod; ++third) {
        all.push_back({first, second, third});
      }
    }
  }
  std::ranges::stable_sort(all, {}, [](const auto& gaps) { return gaps[0] + gaps[1] + gaps[2]; });
  std::vector<StageSlots> pattern(stages);
  for (const auto& gaps : all) {
    bool fits = true;
    for (int i = 0; i < stages && fits; ++i) {
      fits = SlotsOf(stages, i, by, gaps, pattern[i]);
    }
    if (fits) {
      return pattern;
    }
  }
  SHOAL_CHECK(false);
  return {};
}

Schedule VShaped(std::string name, int stages, int microbatches, const Distances& by,
                 const ScheduleCosts* costs) {
  const ScheduleShape shape{.stages = stages,
                            .chunks = 2,
                            .microbatches = microbatches,
                            .placement = Placement::kVShaped};
  std::vector<StageActions> lists;
  for (const StageSlots& first : PatternOf(stages, by)) {
    std::vector<std::pair<int64_t, Action>> slots;
    for (int n = 0; n < microbatches; ++n) {
      const int64_t begin = int64_t{kPeriod} * n;
      for (int chunk = 0; chunk < 2; ++chunk) {
        slots.emplace_back(begin + first.forward[chunk], Action{Operation::kForward, chunk, n});
        slots.emplace_back(begin + first.backward[chunk],
                           Action{Operation::kBackwardInput, chunk, n});
        slots.emplace_back(begin + first.weights[chunk],
                           Action{Operation::kBackwardWeights, chunk, n});
      }
    }
    lists.push_back(InOrder(std::move(slots)));
  }
  const ScheduleCosts equal(shape, {});
  return WithMessages(std::move(name), shape,
                      FillGaps(shape, std::move(lists), costs == nullptr ? equal : *costs));
}

}  // namespace

Schedule ZeroBubbleV(int stages, int microbatches, const ScheduleCosts* costs) {
  return VShaped("ZB-V", stages, microbatches, {3, 3, 3, 3}, costs);
}
Schedule VHalf(int stages, int microbatches, const ScheduleCosts* costs) {
  return VShaped("V-Half", stages, microbatches, {1, 2, 1, 2}, costs);
}
Schedule VMin(int stages, int microbatches, const ScheduleCosts* costs) {
  return VShaped("V-Min", stages, microbatches, {1, 1, 1, 1}, costs);
}

}  // namespace shoal::plan
