// Memory and bubbles of the V-shaped schedules, and that they are complete at any shape.
#include <algorithm>

#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/schedule_check.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

struct Measured {
  int peak = 0;
  double bubble = 0;        // over everything, of the stage that waits longest
  double local_bubble = 0;  // between a stage's own first and last action
};

Measured Measure(const Schedule& schedule) {
  const absl::Status status = CheckSchedule(schedule);
  EXPECT_TRUE(status.ok()) << status.message();
  const auto times = SimulateSchedule(schedule, ScheduleCosts(schedule.shape, {}));
  EXPECT_TRUE(times.ok()) << times.status().message();
  Measured measured{.peak = times->PeakActivations(), .bubble = times->Bubble()};
  for (const StageTimes& stage : times->stages) {
    measured.local_bubble = std::max(measured.local_bubble, stage.LocalBubble());
  }
  return measured;
}

// That the second stage starts a slot later than the first, and so on, cannot be avoided. Waits
// beyond that are the schedule's: according to the literature none for ZB-V, two fifths of 1F1B's
// bubble for V-Half and two thirds for V-Min.
TEST(VShaped, MemoryIsTheFormulaAndBubblesAreSharesOfOneForwardOneBackwards) {
  for (const int stages : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32}) {
    const int microbatches = 4 * stages;
    const double reference =
        Measure(OneForwardOneBackward(stages, microbatches)).bubble * 2;  // both chunks as one
    const Measured zero_bubble = Measure(ZeroBubbleV(stages, microbatches));
    EXPECT_EQ(zero_bubble.peak, 2 * stages);
    EXPECT_EQ(zero_bubble.bubble, stages - 1);
    EXPECT_LE(zero_bubble.local_bubble, stages <= 4 ? 0 : 0.16 * reference) << stages;
    const Measured half = Measure(VHalf(stages, microbatches));
    EXPECT_LE(half.peak, 2 * ((stages + 2) / 2) + 1) << stages;
    EXPECT_LE(half.bubble, 0.5 * reference) << stages;
    const Measured least = Measure(VMin(stages, microbatches));
    EXPECT_EQ(least.peak, 2 * ((stages + 4) / 3)) << stages;
    EXPECT_LE(least.bubble, 0.67 * reference) << stages;
  }
}

TEST(VShaped, TheOrderIsMadeForTheCosts) {
  const ChunkCost unequal = {.forward = 1, .backward_input = 1.5, .backward_weights = 0.5};
  for (const int stages : {2, 4, 8, 16}) {
    for (const int microbatches : {2 * stages, 8 * stages}) {
      const ScheduleShape shape{.stages = stages,
                                .chunks = 2,
                                .microbatches = microbatches,
                                .placement = Placement::kVShaped};
      const ScheduleCosts costs(shape, unequal);
      const auto bubble = [&](const Schedule& schedule) {
        EXPECT_TRUE(CheckSchedule(schedule).ok());
        return SimulateSchedule(schedule, costs)->Bubble();
      };
      // However many microbatches there are: 1F1B's is 6 (stages - 1).
      EXPECT_LE(bubble(ZeroBubbleV(stages, microbatches, &costs)), 0.4 * 6 * (stages - 1));
      // When made for equal costs, each microbatch waits once more.
      EXPECT_GT(bubble(VMin(stages, microbatches)), microbatches / 2.0);
      EXPECT_LE(bubble(VHalf(stages, microbatches, &costs)),
                bubble(VHalf(stages, microbatches)) * (1 + 1e-9));
    }
  }
}

TEST(VShaped, WholeAtAnyShape) {
  for (const int stages : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 23, 32}) {
    for (const int microbatches : {1, 2, 5, 16, 61}) {
      for (const Schedule& schedule : {ZeroBubbleV(stages, microbatches),
                                       VHalf(stages, microbatches), VMin(stages, microbatches)}) {
        const absl::Status status = CheckSchedule(schedule);
        ASSERT_TRUE(status.ok()) << status.message() << " " << stages << " " << microbatches;
        EXPECT_EQ(CountSends(schedule), int64_t{4} * (stages - 1) * microbatches);
      }
    }
  }
}

}  // namespace
}  // namespace shoal::plan
