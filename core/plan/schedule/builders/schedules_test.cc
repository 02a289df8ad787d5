// Compares schedules with theory: memory and bubbles of each are what its formula says, exactly
// where it is exact.
#include <algorithm>
#include <functional>
#include <vector>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/schedule_check.h"
#include "core/plan/schedule/schedule_queues.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "fmt/ranges.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using testing::ElementsAre;

struct Times {
  double forward = 1;
  double backward_input = 1;
  double backward_weights = 1;
};

ScheduleTimes Simulated(const Schedule& schedule, Times times = {}) {
  const absl::Status status = CheckSchedule(schedule);
  EXPECT_TRUE(status.ok()) << Describe(status);
  const ScheduleCosts costs(schedule.shape, {.forward = times.forward,
                                             .backward_input = times.backward_input,
                                             .backward_weights = times.backward_weights});
  auto result = SimulateSchedule(schedule, costs);
  EXPECT_TRUE(result.ok()) << Describe(result.status());
  return result.ok() ? *std::move(result) : ScheduleTimes{};
}

std::vector<int> Peaks(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const StageActions& actions : schedule.stages) {
    peaks.push_back(PeakActivations(actions));
  }
  return peaks;
}

const Times kUnequal = {.forward = 1, .backward_input = 1.5, .backward_weights = 0.5};

TEST(GPipe, HoldsEverythingAndWaitsOncePerPass) {
  for (const int stages : {1, 2, 5, 8}) {
    const Schedule schedule = GPipe(stages, 1, 12);
    EXPECT_THAT(Peaks(schedule), testing::Each(12));
    EXPECT_EQ(Simulated(schedule).Bubble(), (stages - 1) * 3);
    EXPECT_EQ(CountSends(schedule), 2 * (stages - 1) * 12);
  }
}

// Any placement ends, also with as little room for messages as there is, and holds one chunk's
// activations at a time.
TEST(ForwardAlone, EndsWithTheMemoryOfOneForward) {
  for (const Placement placement : {Placement::kLooped, Placement::kVShaped}) {
    for (const int stages : {1, 2, 3, 5}) {
      for (const int chunks : {1, 2, 4}) {
        const Schedule schedule = ForwardAlone(
            {.stages = stages, .chunks = chunks, .microbatches = 7, .placement = placement});
        SCOPED_TRACE(fmt::format("{} stages, {} chunks", stages, chunks));
        EXPECT_THAT(Peaks(schedule), testing::Each(1));
        const ScheduleTimes times = Simulated(schedule);
        EXPECT_GE(times.makespan, 7 * chunks);
        EXPECT_LE(times.makespan, 7 * chunks + stages * chunks);
        for (const MessageQueue& queue : MessageQueues(schedule)) {
          EXPECT_FALSE(queue.gradients);
        }
      }
    }
  }
}

TEST(ForwardAlone, AnswersToItsOwnRules) {
  const Schedule whole = ForwardAlone({.stages = 2, .chunks = 2, .microbatches = 3});
  for (size_t i = 0; i < whole.stages[0].size(); ++i) {
    Schedule without = whole;
    without.stages[0].erase(without.stages[0].begin() + static_cast<ptrdiff_t>(i));
    EXPECT_FALSE(CheckSchedule(without).ok()) << NameOf(whole.stages[0][i]);
  }
  Schedule trains = whole;
  trains.evaluates = false;
  EXPECT_FALSE(CheckSchedule(trains).ok());
  Schedule evaluates = GPipe(2, 2, 3);
  evaluates.evaluates = true;
  EXPECT_FALSE(CheckSchedule(evaluates).ok());
}

TEST(OneForwardOneBackward, TheFactsOfEightStages) {
  const Schedule schedule = OneForwardOneBackward(8, 32);
  EXPECT_THAT(Peaks(schedule), ElementsAre(8, 7, 6, 5, 4, 3, 2, 1));
  const ScheduleTimes times = Simulated(schedule);
  EXPECT_EQ(times.Bubble(), 21);
  EXPECT_EQ(times.makespan, 117);
  EXPECT_EQ(CountSends(schedule), 2 * 7 * 32);
  // A stage's four chunks as one.
  EXPECT_EQ(Simulated(OneForwardOneBackward(8, 64), {4, 6, 2}).Bubble(), 84);
}

TEST(InterleavedOneForwardOneBackward, TheFactsOfEightStages) {
  const Schedule schedule = InterleavedOneForwardOneBackward(8, 4, 32);
  EXPECT_THAT(Peaks(schedule), ElementsAre(39, 37, 35, 33, 31, 29, 27, 25));
  EXPECT_EQ(Simulated(schedule).Bubble(), 21);
  EXPECT_EQ(Simulated(InterleavedOneForwardOneBackward(8, 4, 64), kUnequal).Bubble(), 21);
  EXPECT_EQ(CountSends(schedule), 2 * (8 * 4 - 1) * 32);
}

TEST(GroupedInterleaved, TheFactsOfEightStages) {
  const Schedule whole = GroupedInterleaved(8, 4, 32, 8);
  EXPECT_THAT(Peaks(whole), ElementsAre(32, 31, 30, 29, 28, 27, 26, 25));
  EXPECT_EQ(Simulated(whole).Bubble(), 14);
  EXPECT_EQ(Simulated(whole).makespan, 398);
  const Schedule half = GroupedInterleaved(8, 4, 32, 4);
  EXPECT_THAT(Peaks(half), ElementsAre(20, 19, 18, 17, 16, 15, 14, 13));
  EXPECT_EQ(Simulated(half).Bubble(), 26);
  EXPECT_EQ(Simulated(half).makespan, 410);
  EXPECT_EQ(Simulated(GroupedInterleaved(8, 4, 64, 8), kUnequal).Bubble(), 17.5);
  EXPECT_EQ(Simulated(GroupedInterleaved(8, 4, 64, 4), kUnequal).Bubble(), 41.5);
  EXPECT_EQ(Simulated(GroupedInterleaved(4, 2, 9, 3), kUnequal).Bubble(), 8.5);
  EXPECT_EQ(CountSends(GroupedInterleaved(4, 2, 8, 4)), 112);
}

TEST(GroupedInterleaved, MemoryAndBubbleAreTheFormulaForWholeGroups) {
  for (const Times& t : {Times{1, 1, 1}, kUnequal, Times{2, 3, 1}, Times{1, 2, 2}}) {
    for (int d = 1; d <= 16; d += d < 8 ? 1 : 4) {
      for (int v = 1; v <= 8; v += d < 8 ? 1 : 3) {
        for (int g = SmallestGroup(d); g <= d; ++g) {
          const Schedule schedule = GroupedInterleaved(d, v, 2 * g, g);
          const std::vector<int> peaks = Peaks(schedule);
          for (int stage = 0; stage < d; ++stage) {
            EXPECT_EQ(peaks[stage], std::min(g * (v - 1) + d - stage, 2 * g * v));
          }
          const double between =
              std::max(0.0, d * t.backward_input - g * (t.backward_input + t.backward_weights));
          const double bubble =
              (d - 1) * (t.forward + t.backward_input) + (v - 1) * ((d - g) * t.forward + between);
          EXPECT_NEAR(Simulated(schedule, t).Bubble(), bubble, 1e-9)
              << fmt::format("d {} v {} g {} F {} B {} W {}", d, v, g, t.forward, t.backward_input,
                             t.backward_weights);
        }
      }
    }
  }
}

std::vector<std::string> FirstOf(const StageActions& actions, size_t count) {
  std::vector<std::string> names;
  for (const Action& action : actions) {
    if (IsCompute(action.operation) && names.size() < count) {
      const char letter = action.operation == Operation::kForward         ? 'F'
                          : action.operation == Operation::kBackwardInput ? 'B'
                                                                          : 'W';
      names.push_back(fmt::format("{}{}.{}", letter, action.microbatch, action.chunk));
    }
  }
  return names;
}

TEST(GroupedInterleaved, GoldenOrder) {
  EXPECT_THAT(FirstOf(GroupedInterleaved(2, 2, 4, 2).stages[0], 100),
              ElementsAre("F0.0", "F1.0", "F0.1", "F1.1", "B0.1", "W0.1", "F2.0", "B1.1", "W1.1",
                          "F3.0", "B0.0", "W0.0", "F2.1", "B1.0", "W1.0", "F3.1", "B2.1", "W2.1",
                          "B3.1", "W3.1", "B2.0", "W2.0", "B3.0", "W3.0"));
}

TEST(UniformPipe, GoldenOrder) {
  EXPECT_THAT(
      FirstOf(UniformPipe(2, 2, 4).stages[0], 10),
      ElementsAre("F0.0", "F0.1", "F1.0", "B0.1", "W0.1", "F1.1", "B0.0", "W0.0", "F2.0", "B1.1"));
}

TEST(UniformPipe, PeaksAndBubblesOfTheFacts) {
  struct Fact {
    int stages, chunks, peak;
    double bubble;
  };
  for (const Fact& fact :
       {Fact{4, 2, 7, 9}, Fact{8, 2, 13, 23}, Fact{8, 3, 16, 34}, Fact{8, 4, 23, 41},
        Fact{8, 5, 24, 56}, Fact{8, 16, 71, 172}, Fact{16, 8, 79, 179}}) {
    const Schedule schedule = UniformPipe(fact.stages, fact.chunks, 4 * fact.stages);
    EXPECT_EQ(Peaks(schedule)[0], fact.peak) << fact.stages << " " << fact.chunks;
    EXPECT_EQ(Simulated(schedule).Bubble(), fact.bubble) << fact.stages << " " << fact.chunks;
  }
}

TEST(UniformPipe, StretchesItsBlockWherePassesOfUnequalChunksTakeLonger) {
  // Two chunks of 3 last as long as a pass of 6, and not as long as one of 8.
  const Schedule plain = UniformPipe(4, 3, 24);
  EXPECT_EQ(UniformPipe(4, 3, 24, {.longest_chunk = 3, .longest_pass = 6}).stages, plain.stages);
  const Schedule stretched = UniformPipe(4, 3, 24, {.longest_chunk = 3, .longest_pass = 8});
  EXPECT_TRUE(CheckSchedule(stretched).ok());
  EXPECT_GT(Peaks(stretched)[0], Peaks(plain)[0]);
}

TEST(UniformPipe, WithoutTheFirstChunksMemoryFallsAsTheSquareOfTheRest) {
  const StageActions actions = UniformPipe(8, 16, 64).stages[0];
  std::vector<int> curve;
  for (int offloaded = 0; offloaded <= 16; ++offloaded) {
    StageActions kept;
    std::ranges::copy_if(actions, std::back_inserter(kept),
                         [&](const Action& action) { return action.chunk >= offloaded; });
    curve.push_back(PeakActivations(kept));
    const double share = (16.0 - offloaded) * (17 - offloaded) / (16 * 17);
    EXPECT_NEAR(static_cast<double>(curve.back()) / curve.front(), share, 0.01);
  }
  EXPECT_THAT(curve, ElementsAre(71, 63, 55, 48, 41, 35, 29, 24, 19, 15, 11, 8, 5, 3, 2, 1, 0));
}

TEST(ZeroBubble, TheFactsOfEightStages) {
  const ScheduleTimes one = Simulated(ZeroBubbleH1(8, 24));
  EXPECT_EQ(one.PeakActivations(), 8);
  EXPECT_EQ(one.Bubble(), 7);
  EXPECT_EQ(Simulated(ZeroBubbleH1(8, 24), {1, 1, 0.5}).Bubble(), 10.5);
  const ScheduleTimes two = Simulated(ZeroBubbleH2(8, 24));
  EXPECT_EQ(two.PeakActivations(), 15);
  for (const StageTimes& stage : two.stages) {
    EXPECT_EQ(stage.LocalBubble(), 0);
  }
}

TEST(Simulation, GradientsAreHeldFromASplitBackwardToItsWeights) {
  const ChunkCost cost{.activation_bytes = 100, .gradient_bytes = 7};
  const auto peak = [&](const Schedule& schedule) {
    return SimulateSchedule(schedule, ScheduleCosts(schedule.shape, cost))->PeakDeviceBytes();
  };
  // The first stage's weights' backward follows its B at once, with all activations still there.
  EXPECT_EQ(peak(GroupedInterleaved(4, 2, 8, 4)), 8 * 100 + 7);
  EXPECT_EQ(peak(OneForwardOneBackward(4, 8)), 4 * 100);
  // The last stage of H1 has postponed three weights' backwards.
  const Schedule zero_bubble = ZeroBubbleH1(4, 8);
  const auto times = SimulateSchedule(zero_bubble, ScheduleCosts(zero_bubble.shape, cost));
  EXPECT_EQ(times->stages[0].peak_device_bytes, 4 * 100 + 7);
  EXPECT_EQ(times->stages[3].peak_device_bytes, 4 * 100 + 4 * 7);
}

// Every builder at any shape.
std::vector<Schedule> AllOf(int stages, int chunks, int microbatches) {
  std::vector<Schedule> all = {GPipe(stages, chunks, microbatches),
                               OneForwardOneBackward(stages, microbatches),
                               InterleavedOneForwardOneBackward(stages, chunks, microbatches),
                               UniformPipe(stages, chunks, microbatches),
                               ZeroBubbleH1(stages, microbatches),
                               ZeroBubbleH2(stages, microbatches)};
  for (int group = SmallestGroup(stages); group <= stages; group += std::max(1, stages / 4)) {
    all.push_back(GroupedInterleaved(stages, chunks, microbatches, group));
  }
  return all;
}

TEST(Schedules, AreCompleteAndFreeOfDeadlockAtAnyShape) {
  Random random(11);
  for (int round = 0; round < 60; ++round) {
    const auto stages = static_cast<int>(random.Between(1, 32));
    const auto chunks = static_cast<int>(random.Between(1, 8));
    const auto microbatches = static_cast<int>(random.Between(1, 1 + random.Below(128)));
    for (const Schedule& schedule : AllOf(stages, chunks, microbatches)) {
      ASSERT_TRUE(CheckSchedule(schedule).ok())
          << Describe(CheckSchedule(schedule))
          << fmt::format(" {} {} {}", stages, chunks, microbatches);
    }
  }
}

}  // namespace
}  // namespace shoal::plan
