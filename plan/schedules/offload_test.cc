// Offloads and reloads in schedules: what they save, what they cost, and the laws that they keep at
// any shape.
#include "plan/schedules/offload.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/schedule_check.h"
#include "plan/schedules/builders.h"

namespace shoal::plan {
namespace {

// F = B = W = 1; k is the time of offload and reload together over that of a chunk's compute.
ChunkCost WithCopies(double k) { return {.offload = 1.5 * k, .reload = 1.5 * k}; }

struct Offloaded {
  OffloadPlan plan;
  ScheduleTimes before;
  ScheduleTimes after;
};

Offloaded Offload(const Schedule& schedule, const ScheduleCosts& costs, int chunks,
                  CopyStreams streams = {}) {
  Offloaded result;
  auto plan = AddOffloads(schedule, costs, FirstChunks(schedule.shape, chunks), streams);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  result.plan = *std::move(plan);
  const absl::Status status = CheckSchedule(result.plan.schedule);
  EXPECT_TRUE(status.ok()) << status.message();
  result.before = SimulateSchedule(schedule, costs, streams).value();
  auto after = SimulateSchedule(result.plan.schedule, costs, streams);
  EXPECT_TRUE(after.ok()) << after.status().message();
  result.after = *std::move(after);
  return result;
}

Offloaded OffloadUniform(int stages, int chunks, int microbatches, int offloaded, double k,
                         CopyStreams streams = {}) {
  const Schedule schedule = UniformPipe(stages, chunks, microbatches);
  return Offload(schedule, ScheduleCosts(schedule.shape, WithCopies(k)), offloaded, streams);
}

TEST(Offload, FullOffloadKeepsThePeakWhereStagesGrow) {
  for (const int stages : {2, 4, 8, 16, 32}) {
    for (const int chunks : {2, 4, 8}) {
      const auto peak = [&](double k) {
        const Offloaded full = OffloadUniform(stages, chunks, 2 * stages, chunks, k);
        EXPECT_LE(full.after.makespan, full.before.makespan);
        return full.after.PeakActivations();
      };
      EXPECT_EQ(peak(0.5), stages == 2 ? 2 : 3) << stages << " " << chunks;
      EXPECT_EQ(peak(0.75), 3) << stages << " " << chunks;
      EXPECT_LE(peak(1), 4) << stages << " " << chunks;
    }
  }
}

TEST(Offload, HalfOffloadTakesTheLongestLifespansAway) {
  for (const int stages : {4, 8, 16}) {
    for (const int chunks : {2, 4, 8}) {
      // A device that copies half of its activations does so for as long as it computes where k
      // = 2.
      for (const double k : {1.0, 1.5}) {
        const Offloaded half = OffloadUniform(stages, chunks, 4 * stages, (chunks + 1) / 2, k);
        // The activations of the other chunks and those under way.
        const double under_way = k > 1 ? 5 : 4;
        EXPECT_LE(half.after.PeakActivations(), stages * (chunks + 2) / 8.0 + under_way);
        EXPECT_LE(half.after.makespan, half.before.makespan);
        EXPECT_THAT(half.plan.kept, testing::IsEmpty());
      }
    }
  }
}

TEST(Offload, AsMuchAsTheCopiesHaveTimeForAndNoErrorBeyond) {
  for (const double k : {0.5, 0.75, 1.0, 1.5, 2.0, 3.0}) {
    for (int q = 1; q <= 4; ++q) {
      const Offloaded simplex = OffloadUniform(8, 4, 64, q, k);
      const Offloaded duplex = OffloadUniform(8, 4, 64, q, k, {.duplex = true});
      const int64_t chosen = int64_t{8} * 64 * q;
      EXPECT_EQ(simplex.plan.offloaded + static_cast<int64_t>(simplex.plan.kept.size()), chosen);
      EXPECT_LE(simplex.after.makespan, simplex.before.makespan);
      EXPECT_LE(duplex.after.makespan, duplex.before.makespan);
      EXPECT_LE(static_cast<double>(simplex.plan.offloaded), 8 * 64 * 4 / k * 1.02);
      EXPECT_LT(simplex.after.PeakActivations(), simplex.before.PeakActivations());
      EXPECT_LE(duplex.after.PeakActivations(), simplex.after.PeakActivations());
      // Neighbours behind one switch now and then wait for each other.
      const Offloaded paired = OffloadUniform(8, 4, 64, q, k, {.paired = true});
      EXPECT_LE(paired.after.makespan, paired.before.makespan * 1.05) << k << " " << q;
      EXPECT_LT(paired.after.PeakActivations(), paired.before.PeakActivations());
      if (q * k <= 4 && q < 4) {
        EXPECT_THAT(simplex.plan.kept, testing::IsEmpty()) << k << " " << q;
      }
      if (q * k <= 2 && q < 4) {
        EXPECT_THAT(paired.plan.kept, testing::IsEmpty()) << k << " " << q;
        EXPECT_LE(paired.after.PeakActivations(), simplex.after.PeakActivations() + 1);
      }
    }
  }
}

TEST(Offload, FractionsOfAChunkAreMicrobatchesFarApart) {
  const ScheduleShape shape{.stages = 2, .chunks = 3, .microbatches = 8};
  const OffloadChoice choice = FirstChunks(shape, 1.25);
  const auto chosen = [&](int chunk) {
    std::vector<int> microbatches;
    for (int microbatch = 0; microbatch < 8; ++microbatch) {
      if (choice[1][chunk * 8 + microbatch]) {
        microbatches.push_back(microbatch);
      }
    }
    return microbatches;
  };
  EXPECT_EQ(chosen(0).size(), 8U);
  EXPECT_THAT(chosen(1), testing::ElementsAre(3, 7));
  EXPECT_THAT(chosen(2), testing::IsEmpty());
  // Between two whole numbers memory falls step by step.
  int last = 1000;
  for (double chunks = 0; chunks <= 2; chunks += 0.25) {
    const Schedule schedule = UniformPipe(8, 4, 64);
    const ScheduleCosts costs(schedule.shape, WithCopies(0.5));
    const auto plan = AddOffloads(schedule, costs, FirstChunks(schedule.shape, chunks));
    const int peak = PeakActivations(plan->schedule.stages[0]);
    EXPECT_LT(peak, last) << chunks;
    last = peak;
  }
}

// Microbatches of unequal length: nothing is sized for the longest.
TEST(Offload, ShortMicrobatchesTakeShortCopies) {
  const Schedule schedule = UniformPipe(4, 4, 32);
  ScheduleCosts costs(schedule.shape, {});
  for (int microbatch = 0; microbatch < 32; ++microbatch) {
    const double length = microbatch % 4 == 0 ? 4.0 : 1.0;
    for (int stage = 0; stage < 4; ++stage) {
      for (int chunk = 0; chunk < 4; ++chunk) {
        costs.Of(stage, chunk, microbatch) = {.forward = length,
                                              .backward_input = length,
                                              .backward_weights = length,
                                              .offload = 1.5 * 0.75 * length,
                                              .reload = 1.5 * 0.75 * length};
      }
    }
  }
  const Offloaded full = Offload(schedule, costs, 4);
  EXPECT_LE(full.after.makespan, full.before.makespan * (1 + 1e-9));
  EXPECT_LE(full.after.PeakActivations(), 6);
  EXPECT_GE(full.plan.offloaded, 4 * 32 * 4 * 8 / 10);
}

TEST(Offload, CopiesThatTakeForEverOffloadNothingAndThoseThatTakeNoTimeCostNothing) {
  const Offloaded never = OffloadUniform(4, 3, 16, 3, 1e6);
  EXPECT_EQ(never.plan.offloaded, 0);
  EXPECT_EQ(never.after.makespan, never.before.makespan);
  EXPECT_EQ(never.after.PeakActivations(), never.before.PeakActivations());
  EXPECT_THAT(never.plan.Diagnosis(),
              testing::HasSubstr("0 activations offloaded; 192 kept on the device"));
  const Offloaded free = OffloadUniform(4, 3, 16, 3, 0);
  EXPECT_GT(free.plan.offloaded, 150);
  EXPECT_EQ(free.after.makespan, free.before.makespan);
}

TEST(Offload, OneDeviceAlone) {
  // Gradient accumulation over one long microbatch in several runs of layers.
  const Schedule schedule = GPipe(1, 8, 1);
  const Offloaded alone = Offload(schedule, ScheduleCosts(schedule.shape, WithCopies(0.5)), 8);
  EXPECT_EQ(alone.before.PeakActivations(), 8);
  EXPECT_LE(alone.after.PeakActivations(), 4);
  EXPECT_EQ(alone.after.makespan, alone.before.makespan);
}

// No two overlap; begins and ends touch within rounding.
void ExpectOneAtATime(std::vector<ActionSpan> spans) {
  std::ranges::sort(spans, {},
                    [](const ActionSpan& span) { return std::pair(span.begin, span.end); });
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_LE(spans[i - 1].end, spans[i].begin + 1e-9);
  }
}

void ExpectTransferLaws(const Schedule& schedule, const ScheduleTimes& times, CopyStreams streams) {
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    std::map<std::tuple<int, int>, std::map<Operation, ActionSpan>> by_activation;
    std::vector<ActionSpan> offloads;
    std::vector<ActionSpan> reloads;
    for (const ActionSpan& span : times.spans[stage]) {
      by_activation[{span.action.chunk, span.action.microbatch}][span.action.operation] = span;
      if (span.lane == Lane::kOffload) {
        offloads.push_back(span);
      } else if (span.lane == Lane::kReload) {
        reloads.push_back(span);
      }
    }
    EXPECT_EQ(offloads.size(), reloads.size());
    for (const ActionSpan& span : offloads) {
      auto& of = by_activation[{span.action.chunk, span.action.microbatch}];
      const Operation backward =
          of.contains(Operation::kBackward) ? Operation::kBackward : Operation::kBackwardInput;
      EXPECT_LE(of[Operation::kForward].end, span.begin);
      EXPECT_LE(span.end, of[Operation::kReload].begin + 1e-9);
      EXPECT_LE(of[Operation::kReload].end, of[backward].begin);
    }
    std::vector<ActionSpan> both = offloads;
    both.insert(both.end(), reloads.begin(), reloads.end());
    if (!streams.duplex) {
      ExpectOneAtATime(both);
    }
    if (streams.paired && stage % 2 == 1) {
      for (const ActionSpan& span : times.spans[stage - 1]) {
        if (span.lane == Lane::kOffload) {
          offloads.push_back(span);
        } else if (span.lane == Lane::kReload) {
          reloads.push_back(span);
        }
      }
    }
    ExpectOneAtATime(offloads);
    ExpectOneAtATime(reloads);
  }
}

Schedule RandomSchedule(Random& random) {
  const auto stages = static_cast<int>(random.Between(1, 1 + random.Below(32)));
  const auto chunks = static_cast<int>(random.Between(1, 8));
  const auto microbatches = static_cast<int>(random.Between(1, 1 + random.Below(64)));
  switch (random.Below(4)) {
    case 0:
      return InterleavedOneForwardOneBackward(stages, chunks, microbatches);
    case 1:
      return GroupedInterleaved(stages, chunks, microbatches,
                                static_cast<int>(random.Between(SmallestGroup(stages), stages)));
    case 2:
      return ZeroBubbleH1(stages, microbatches);
    default:
      return UniformPipe(stages, chunks, microbatches);
  }
}

TEST(Offload, TheLawsOfTransfersHoldAtAnyShapeCostsAndLengths) {
  Random random(5);
  for (int round = 0; round < 60; ++round) {
    const Schedule schedule = RandomSchedule(random);
    ScheduleCosts costs(schedule.shape, {});
    OffloadChoice choice = FirstChunks(schedule.shape, 0);
    const double copying = 3 * random.Uniform();
    for (int microbatch = 0; microbatch < schedule.shape.microbatches; ++microbatch) {
      const double length = 0.2 + random.Uniform();
      for (int stage = 0; stage < schedule.shape.stages; ++stage) {
        for (int chunk = 0; chunk < schedule.shape.chunks; ++chunk) {
          const double size = length * (0.5 + random.Uniform());
          costs.Of(stage, chunk, microbatch) = {
              .forward = size,
              .backward_input = 1.5 * size,
              .backward_weights = 0.5 * size * random.Uniform(),
              .offload = copying * length,
              .reload = copying * length * 0.9,
              .send_activation = 0.1 * length,
              .send_gradient = 0.1 * length,
              .activation_bytes = static_cast<int64_t>(1000 * length),
              .offload_bytes = static_cast<int64_t>(900 * length)};
          choice[stage][static_cast<size_t>(chunk) * schedule.shape.microbatches + microbatch] =
              random.Below(4) != 0;
        }
      }
    }
    const CopyStreams streams = {.duplex = random.Below(2) == 0, .paired = random.Below(2) == 0};
    const auto plan = AddOffloads(schedule, costs, choice, streams);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const absl::Status status = CheckSchedule(plan->schedule);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto before = SimulateSchedule(schedule, costs, streams);
    const auto after = SimulateSchedule(plan->schedule, costs, streams);
    ASSERT_TRUE(before.ok() && after.ok());
    ExpectTransferLaws(plan->schedule, *after, streams);
    EXPECT_LE(after->PeakDeviceBytes(), before->PeakDeviceBytes());
    for (int stage = 0; stage < schedule.shape.stages; ++stage) {
      EXPECT_LE(after->stages[stage].peak_host_bytes, before->stages[stage].peak_device_bytes);
      EXPECT_EQ(after->stages[stage].peak_activations,
                PeakActivations(plan->schedule.stages[stage]));
      EXPECT_LE(after->stages[stage].peak_activations, before->stages[stage].peak_activations);
    }
    if (!streams.paired) {
      EXPECT_LE(after->makespan, before->makespan * (1 + 1e-9)) << schedule.name;
    }
  }
}

}  // namespace
}  // namespace shoal::plan
