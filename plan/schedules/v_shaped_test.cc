// Memory and bubbles of the V-shaped schedules, and that they are whole at any shape.
#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/schedule_check.h"
#include "plan/schedule_simulation.h"
#include "plan/schedules/builders.h"

namespace shoal::plan {
namespace {

struct Measured {
  int peak = 0;
  double bubble = 0;        // over all, of the stage that waits longest
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

TEST(VShaped, MemoryIsTheFormulaAndBubblesAreSharesOfOneForwardOneBackwards) {
  for (const int stages : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32}) {
    const int microbatches = 3 * stages;
    const double reference =
        Measure(OneForwardOneBackward(stages, microbatches)).bubble * 2;  // both chunks as one
    const Measured zero_bubble = Measure(ZeroBubbleV(stages, microbatches));
    EXPECT_EQ(zero_bubble.peak, 2 * stages);
    EXPECT_LE(zero_bubble.local_bubble, 0.26 * reference) << stages;
    const Measured half = Measure(VHalf(stages, microbatches));
    EXPECT_LE(half.peak, 2 * ((stages + 2) / 2) + 1) << stages;
    EXPECT_LE(half.local_bubble, 0.6 * reference) << stages;
    const Measured least = Measure(VMin(stages, microbatches));
    EXPECT_EQ(least.peak, 2 * ((stages + 4) / 3)) << stages;
    EXPECT_LE(least.local_bubble, 0.75 * reference) << stages;
  }
}

TEST(VShaped, WholeAtAnyShape) {
  for (int stages = 1; stages <= 32; ++stages) {
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
