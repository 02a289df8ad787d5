// What every schedule satisfies, with any builder, shape, costs and transfers: nobody waits
// forever, all memory is freed, copies run only where and when they may.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/plan/schedule/builders/testing/random_schedule.h"
#include "core/plan/schedule/schedule_check.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

constexpr ScheduleLimits kLimits = {.stages = 32, .chunks = 8, .microbatches = 128};

// What is taken is freed once; and weight gradients are made in the order of microbatches, on which
// the bits of their sums may depend.
void ExpectAllComesBack(const Schedule& schedule) {
  for (const StageActions& actions : schedule.stages) {
    int on_device = 0;
    int on_host = 0;
    std::vector<int> last_weights(schedule.shape.chunks, -1);
    std::map<Operation, int> counts;
    for (const Action& action : actions) {
      ++counts[action.operation];
      on_device +=
          action.operation == Operation::kForward || action.operation == Operation::kPrepare;
      on_host += action.operation == Operation::kOffload;
      on_host -= action.operation == Operation::kReload;
      EXPECT_GE(on_host, 0);
      if (action.operation == Operation::kRelease || IsBackwardForWeights(action.operation)) {
        EXPECT_GE(--on_device, 0);
      }
      if (IsBackwardForWeights(action.operation)) {
        EXPECT_EQ(action.microbatch, last_weights[action.chunk] + 1) << schedule.name;
        last_weights[action.chunk] = action.microbatch;
      }
    }
    EXPECT_EQ(on_device, 0);
    EXPECT_EQ(on_host, 0);
    EXPECT_EQ(counts[Operation::kOffload], counts[Operation::kReload]);
    EXPECT_EQ(counts[Operation::kRelease], counts[Operation::kPrepare]);
    EXPECT_EQ(counts[Operation::kForward], schedule.shape.chunks * schedule.shape.microbatches);
  }
}

// No two overlap; starts and ends coincide within rounding.
void ExpectOneAtATime(std::vector<ActionSpan> spans) {
  std::ranges::sort(spans, {},
                    [](const ActionSpan& span) { return std::pair(span.begin, span.end); });
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_LE(spans[i - 1].end, spans[i].begin + 1e-9);
  }
}

std::vector<ActionSpan> SpansOf(const ScheduleTimes& times, int stage, Track track) {
  std::vector<ActionSpan> spans;
  std::ranges::copy_if(times.spans[stage], std::back_inserter(spans),
                       [&](const ActionSpan& span) { return span.track == track; });
  return spans;
}

// For every activation: F ends, then its offload, then its reload, then B begins.
void ExpectCopiesInOrder(const Schedule& schedule, const ScheduleTimes& times, int stage) {
  struct Times {
    double forward_end = 0;
    double offload_begin = -1;
    double offload_end = 0;
    double reload_begin = 0;
    double reload_end = 0;
    double backward_begin = 0;
  };
  std::vector<Times> all(static_cast<size_t>(schedule.shape.chunks) * schedule.shape.microbatches);
  for (const ActionSpan& span : times.spans[stage]) {
    Times& of = all[static_cast<size_t>(span.action.chunk) * schedule.shape.microbatches +
                    span.action.microbatch];
    if (span.action.operation == Operation::kForward) {
      of.forward_end = span.end;
    } else if (span.track == Track::kOffload) {
      of.offload_begin = span.begin;
      of.offload_end = span.end;
    } else if (span.track == Track::kReload) {
      of.reload_begin = span.begin;
      of.reload_end = span.end;
    } else if (IsBackwardForInput(span.action.operation)) {
      of.backward_begin = span.begin;
    }
  }
  for (const Times& of : all) {
    if (of.offload_begin >= 0) {
      EXPECT_LE(of.forward_end, of.offload_begin);
      EXPECT_LE(of.offload_end, of.reload_begin + 1e-9);
      EXPECT_LE(of.reload_end, of.backward_begin);
    }
  }
}

void ExpectCopiesKeepToTheirStreams(const Schedule& schedule, const ScheduleTimes& times,
                                    CopyStreams streams) {
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    ExpectCopiesInOrder(schedule, times, stage);
    std::vector<ActionSpan> offloads = SpansOf(times, stage, Track::kOffload);
    std::vector<ActionSpan> reloads = SpansOf(times, stage, Track::kReload);
    EXPECT_EQ(offloads.size(), reloads.size());
    if (!streams.duplex) {
      std::vector<ActionSpan> both = offloads;
      both.insert(both.end(), reloads.begin(), reloads.end());
      ExpectOneAtATime(both);
    }
    if (streams.paired && stage % 2 == 1) {
      std::ranges::copy(SpansOf(times, stage - 1, Track::kOffload), std::back_inserter(offloads));
      std::ranges::copy(SpansOf(times, stage - 1, Track::kReload), std::back_inserter(reloads));
    }
    ExpectOneAtATime(offloads);
    ExpectOneAtATime(reloads);
  }
}

TEST(AnySchedule, EndsAndGivesAllMemoryBack) {
  Random random(11);
  for (int round = 0; round < 500; ++round) {
    const Schedule schedule = RandomSchedule(random, kLimits);
    const absl::Status status = CheckSchedule(schedule);
    ASSERT_TRUE(status.ok()) << Describe(status);
    ExpectAllComesBack(schedule);
    const ScheduleCosts costs = RandomCosts(random, schedule.shape, 1);
    const auto times = SimulateSchedule(schedule, costs, {}, Spans::kNone);
    ASSERT_TRUE(times.ok()) << Describe(times.status());
    for (int stage = 0; stage < schedule.shape.stages; ++stage) {
      EXPECT_EQ(times->stages[stage].peak_activations, PeakActivations(schedule.stages[stage]));
    }
  }
}

TEST(AnySchedule, KeepsTheLawsOfTransfers) {
  Random random(5);
  int64_t offloaded = 0;
  for (int round = 0; round < 300; ++round) {
    const Schedule schedule = RandomSchedule(random, kLimits);
    const ScheduleCosts costs = RandomCosts(random, schedule.shape, 3 * random.Uniform());
    const CopyStreams streams = {.duplex = random.Below(2) == 0, .paired = random.Below(2) == 0};
    const auto plan =
        AddOffloads(schedule, costs, RandomChoice(random, schedule.shape, costs), streams);
    ASSERT_TRUE(plan.ok()) << Describe(plan.status());
    offloaded += plan->offloaded;
    const absl::Status status = CheckSchedule(plan->schedule);
    ASSERT_TRUE(status.ok()) << Describe(status);
    ExpectAllComesBack(plan->schedule);
    const auto before = SimulateSchedule(schedule, costs, streams, Spans::kNone);
    const auto after = SimulateSchedule(plan->schedule, costs, streams);
    ASSERT_TRUE(before.ok() && after.ok());
    ExpectCopiesKeepToTheirStreams(plan->schedule, *after, streams);
    for (int stage = 0; stage < schedule.shape.stages; ++stage) {
      const StageTimes& with = after->stages[stage];
      const StageTimes& without = before->stages[stage];
      EXPECT_LE(with.peak_activations, without.peak_activations);
      EXPECT_LE(with.peak_device_bytes, without.peak_device_bytes);
      EXPECT_LE(with.peak_host_activations, without.peak_activations);
      EXPECT_LE(with.peak_host_bytes, without.peak_device_bytes);
    }
    if (!streams.paired) {
      EXPECT_LE(after->makespan, before->makespan * (1 + 1e-9)) << schedule.name;
    }
  }
  EXPECT_GT(offloaded, 10000);
}

}  // namespace
}  // namespace shoal::plan
