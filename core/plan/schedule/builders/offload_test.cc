// Offloads and reloads in schedules: what they save and what they cost.
#include "core/plan/schedule/builders/offload.h"

#include <algorithm>

#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/schedule_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
      // With k = 2 a device that copies half of its activations copies for as long as it computes.
      for (const double k : {1.0, 1.5}) {
        const Offloaded half = OffloadUniform(stages, chunks, 4 * stages, (chunks + 1) / 2, k);
        // The activations of the other chunks and those in flight.
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
      // Neighbours behind one switch wait for each other now and then.
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

}  // namespace
}  // namespace shoal::plan
