// The runtime on emulated stages: does what the simulation says, whatever is late, and always ends.
#include "worker/pipeline/stage_runner.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "core/base/status.h"
#include "core/plan/schedule/builders/testing/random_schedule.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "core/plan/step/cost_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/pipeline/links/in_process_links.h"
#include "worker/pipeline/stage_job.h"
#include "worker/pipeline/testing/emulated_pipeline.h"

namespace shoal::worker {
namespace {

using plan::MemoryPool;
using testing::HasSubstr;

// Seconds for a unit of the costs' time: tests are about order, and delays are longer.
constexpr double kFast = 20e-6;

constexpr MemoryPool kPools[] = {MemoryPool::kDevice, MemoryPool::kHost, MemoryPool::kMessages};

struct Planned {
  plan::Schedule schedule;
  plan::ScheduleCosts costs;
  plan::ScheduleTimes times;
};

// Plans that schedule with random costs and offloads.
Planned Plan(Random& random, const plan::Schedule& schedule, bool duplex) {
  plan::ScheduleCosts costs =
      plan::RandomCosts(random, schedule.shape, 0.1 + random.Uniform(), kBufferAlignment);
  auto offloads = plan::AddOffloads(
      schedule, costs, plan::RandomChoice(random, schedule.shape, costs), {.duplex = duplex});
  EXPECT_TRUE(offloads.ok()) << Describe(offloads.status());
  auto times = plan::SimulateSchedule(offloads->schedule, costs, {.duplex = duplex});
  EXPECT_TRUE(times.ok()) << Describe(times.status());
  return {std::move(offloads->schedule), std::move(costs), *std::move(times)};
}

void ExpectAllGivenBack(EmulatedPipeline& pipeline) {
  for (int stage = 0; stage < pipeline.stages(); ++stage) {
    for (const MemoryPool pool : kPools) {
      EXPECT_EQ(pipeline.runner(stage).pools().pool(pool).used(), 0);
    }
  }
}

// Each stage counts the bytes that its list sends, and receives what its peers count as sent.
void ExpectTraffic(const EmulatedPipeline& pipeline, const plan::Schedule& schedule,
                   const StageReports& reports) {
  for (size_t stage = 0; stage < reports.size(); ++stage) {
    int64_t sent = 0;
    for (const auto& [peer, traffic] : reports[stage]->traffic) {
      sent += traffic.sent_bytes;
      const auto& of_peer = reports[static_cast<size_t>(peer)]->traffic;
      const auto back = of_peer.find(static_cast<int>(stage));
      ASSERT_NE(back, of_peer.end());
      EXPECT_EQ(back->second.received_bytes, traffic.sent_bytes) << stage << " to " << peer;
    }
    int64_t expected = 0;
    for (const plan::Action& action : schedule.stages[stage]) {
      expected += IsSend(action.operation) ? pipeline.MessageBytes(action.microbatch) : 0;
    }
    EXPECT_EQ(sent, expected) << "stage " << stage;
  }
}

void ExpectAsSimulated(EmulatedPipeline& pipeline, const Planned& planned,
                       const StageReports& reports) {
  for (int stage = 0; stage < pipeline.stages(); ++stage) {
    const absl::StatusOr<StageReport>& report = reports[static_cast<size_t>(stage)];
    ASSERT_TRUE(report.ok()) << planned.schedule.name << ": " << Describe(report.status());
    const plan::StageTimes& times = planned.times.stages[static_cast<size_t>(stage)];
    EXPECT_EQ(report->peak_device_bytes, times.peak_device_bytes) << planned.schedule.name;
    EXPECT_EQ(report->peak_host_bytes, times.peak_host_bytes) << planned.schedule.name;
    ASSERT_EQ(report->microbatches.size(),
              static_cast<size_t>(planned.schedule.shape.microbatches));
    for (const MicrobatchResult& result : report->microbatches) {
      EXPECT_EQ(result.tokens, 5);
    }
  }
  EXPECT_EQ(pipeline.GradientsOtherThanOne(), "") << planned.schedule.name;
  ExpectTraffic(pipeline, planned.schedule, reports);
  ExpectAllGivenBack(pipeline);
}

// Steps of different lengths and numbers of microbatches, by the same runners.
TEST(StageRunner, RunsEverySchedulesListsWhateverComesLate) {
  Random random(31);
  for (int round = 0; round < 60; ++round) {
    const plan::Schedule first =
        plan::RandomSchedule(random, {.stages = 6, .chunks = 4, .microbatches = 12});
    const bool duplex = random.Below(2) == 0;
    EmulatedPipeline pipeline(
        first.shape, {.copies = {.longest_delay = absl::Microseconds(300), .seed = random.Next()},
                      .duplex = duplex,
                      .seconds_per_unit = kFast,
                      .tied_embeddings = random.Below(2) == 0});
    InProcessPipeline links(first.shape.stages,
                            {.longest_delay = absl::Microseconds(300), .seed = random.Next()});
    Planned planned = Plan(random, first, duplex);
    for (int step = 0; step < 3; ++step) {
      ExpectAsSimulated(
          pipeline, planned,
          pipeline.RunStep(planned.schedule, planned.costs, AllLinks(links, first.shape.stages)));
      if (HasFatalFailure()) {
        return;
      }
      pipeline.NextStep();
      planned = Plan(random, first, duplex);
    }
  }
}

TEST(StageRunner, OneStageAlone) {
  Random random(32);
  for (int round = 0; round < 10; ++round) {
    const Planned planned = Plan(random, plan::GPipe(1, 4, 3), false);
    EmulatedPipeline pipeline(
        planned.schedule.shape,
        {.copies = {.longest_delay = absl::Microseconds(300)}, .seconds_per_unit = kFast});
    ExpectAsSimulated(pipeline, planned,
                      pipeline.RunStep(planned.schedule, planned.costs, {nullptr}));
  }
}

TEST(StageRunner, NothingIsReservedAfterTheFirstStep) {
  Random random(33);
  const Planned planned = Plan(random, plan::VHalf(3, 8), false);
  EmulatedPipeline pipeline(planned.schedule.shape, {.seconds_per_unit = kFast});
  InProcessPipeline links(3);
  std::vector<int64_t> first;
  for (int step = 0; step < 4; ++step) {
    ExpectAsSimulated(pipeline, planned,
                      pipeline.RunStep(planned.schedule, planned.costs, AllLinks(links, 3)));
    std::vector<int64_t> reservations;
    for (int stage = 0; stage < 3; ++stage) {
      for (const MemoryPool pool : kPools) {
        reservations.push_back(pipeline.runner(stage).pools().pool(pool).reservations());
      }
    }
    if (step == 0) {
      EXPECT_GE(std::ranges::count(reservations, 1), 6);
      first = reservations;
    }
    EXPECT_EQ(reservations, first);
    pipeline.NextStep();
  }
}

TEST(StageRunner, CancellingAStageEndsAll) {
  Random random(34);
  for (int round = 0; round < 20; ++round) {
    const Planned planned = Plan(random, plan::UniformPipe(4, 2, 12), false);
    EmulatedPipeline pipeline(
        planned.schedule.shape,
        {.copies = {.longest_delay = absl::Milliseconds(1)}, .seconds_per_unit = 100e-6});
    InProcessPipeline links(4, {.longest_delay = absl::Milliseconds(1)});
    const auto cancelled = static_cast<int>(random.Below(4));
    std::thread canceller([&] {
      RealClock().SleepFor(absl::Microseconds(random.Below(20000)));
      pipeline.runner(cancelled).Cancel(absl::CancelledError("the worker is leaving"));
    });
    const StageReports reports =
        pipeline.RunStep(planned.schedule, planned.costs, AllLinks(links, 4));
    canceller.join();
    for (int stage = 0; stage < 4; ++stage) {
      const absl::Status& status = reports[static_cast<size_t>(stage)].status();
      if (stage == cancelled) {
        EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << Describe(status);
      } else if (!status.ok()) {
        EXPECT_TRUE(absl::IsUnavailable(status)) << Describe(status);
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(fmt::format("stage {} gave up", cancelled)));
      }
    }
    ExpectAllGivenBack(pipeline);
    // It runs no further step.
    EXPECT_TRUE(absl::IsCancelled(
        pipeline.RunStage(cancelled, planned.schedule, planned.costs, &links.links(cancelled))
            .status()));
  }
}

TEST(StageRunner, AFailedAttemptIsRunAgainOverNewLinks) {
  Random random(35);
  const Planned planned = Plan(random, plan::InterleavedOneForwardOneBackward(3, 2, 6), false);
  EmulatedPipeline pipeline(planned.schedule.shape, {.seconds_per_unit = 200e-6});
  for (int attempt = 0; attempt < 10; ++attempt) {
    InProcessPipeline links(3);
    std::thread closer([&] {
      RealClock().SleepFor(absl::Milliseconds(attempt));
      links.links(1).Close(absl::AbortedError("the attempt is dropped"));
    });
    const StageReports reports =
        pipeline.RunStep(planned.schedule, planned.costs, AllLinks(links, 3));
    closer.join();
    ExpectAllGivenBack(pipeline);
    EXPECT_TRUE(reports[1].ok() || absl::IsAborted(reports[1].status()));
    pipeline.GradientsOtherThanOne();  // of stages that had ended
    pipeline.NextAttempt();
  }
  InProcessPipeline links(3);
  ExpectAsSimulated(pipeline, planned,
                    pipeline.RunStep(planned.schedule, planned.costs, AllLinks(links, 3)));
}

TEST(StageRunner, ANeighbourThatNeverSendsIsNamed) {
  Random random(36);
  const Planned planned = Plan(random, plan::OneForwardOneBackward(3, 4), false);
  EmulatedPipeline pipeline(planned.schedule.shape,
                            {.wait_timeout = absl::Milliseconds(30), .seconds_per_unit = kFast});
  InProcessPipeline links(3);
  const absl::Status status =
      pipeline.RunStage(1, planned.schedule, planned.costs, &links.links(1)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(Message(status),
            "stage 1 waits for the activation of chunk 0 microbatch 0 from stage 0: it did not "
            "come within 30ms");
  ExpectAllGivenBack(pipeline);
}

TEST(NeighbourTimeout, IsTenMinutesOrFourStepsIfThoseAreLonger) {
  const plan::ModelSpec spec = *plan::NamedShape("25m");
  const plan::ChosenPipeline pipeline{.heaviest = {{.tokens = 2048, .squared_tokens = 4e6}}};
  const auto seconds = [&](double flops) {
    const plan::PipelinePace pace{
        .forward_flops = flops, .backward_input_flops = flops, .backward_weights_flops = flops};
    return absl::ToDoubleSeconds(NeighbourTimeout(spec, DType::kF32, pipeline, pace));
  };
  EXPECT_EQ(seconds(1e12), 600);
  const double flops = 4 * plan::FlopCost(spec).Microbatch(2048, 4e6);
  EXPECT_GT(seconds(1e8), 1200);
  EXPECT_NEAR(seconds(1e8), flops / 1e8, 0.1 * flops / 1e8);
}

TEST(StageRunner, AWrongScheduleIsRefusedBeforeAnythingRuns) {
  Random random(37);
  Planned planned = Plan(random, plan::OneForwardOneBackward(2, 4), false);
  EmulatedPipeline pipeline(planned.schedule.shape, {});
  const auto refused = [&] {
    InProcessPipeline links(2);
    return pipeline.RunStage(0, planned.schedule, planned.costs, &links.links(0)).status();
  };
  const plan::Schedule whole = planned.schedule;
  planned.schedule.stages[1].pop_back();  // of the other stage
  EXPECT_TRUE(absl::IsInvalidArgument(refused())) << Describe(refused());
  planned.schedule = whole;
  planned.schedule.shape.microbatches = 5;
  EXPECT_TRUE(absl::IsInvalidArgument(refused())) << Describe(refused());
  planned.schedule = whole;
  EXPECT_EQ(pipeline.RunStage(0, whole, planned.costs, nullptr).status().message(),
            "1F1B: stage 0 has no links to its neighbours");
  EXPECT_EQ(pipeline.GradientsOtherThanOne().substr(0, 5), "embed");  // nothing was added
}

TEST(StageRunner, WhatDoesNotFitIsRefusedBeforeAnythingRuns) {
  const plan::Schedule schedule = plan::GPipe(1, 2, 4);
  const plan::ScheduleCosts costs(
      schedule.shape,
      {.offload = 0.1, .reload = 0.1, .activation_bytes = 1024, .offload_bytes = 1024});
  const auto offloaded = plan::AddOffloads(schedule, costs, plan::FirstChunks(schedule.shape, 2));
  const auto run = [&](int64_t device, int64_t host, const plan::Schedule& of) {
    EmulatedPipeline pipeline(schedule.shape, {.device_budget_bytes = device,
                                               .host_budget_bytes = host,
                                               .seconds_per_unit = kFast,
                                               .message_bytes = 64});
    return pipeline.RunStep(of, costs, {nullptr})[0].status();
  };
  const absl::Status device = run(8192, 1 << 20, schedule);
  EXPECT_TRUE(absl::IsResourceExhausted(device));
  EXPECT_EQ(Message(device),
            "stage 0: GPipe needs 8640 B of cpu memory (8640 B in use at once), and of its budget "
            "of 8192 B 8192 B are left; offload more, raise the budget or lower microbatch_tokens");
  EXPECT_TRUE(run(9000, 1 << 20, schedule).ok());
  const absl::Status host = run(1 << 20, 2048, offloaded->schedule);
  EXPECT_TRUE(absl::IsResourceExhausted(host));
  EXPECT_THAT(std::string(host.message()), HasSubstr("of host memory"));
  EXPECT_TRUE(run(8192, 1 << 20, offloaded->schedule).ok());
}

TEST(StageRunner, ACopyThatFailsIsNamedAndNeighboursLearnOfIt) {
  const plan::Schedule schedule = plan::GPipe(2, 2, 6);
  const plan::ScheduleCosts costs(
      schedule.shape, {.offload = 0.1, .reload = 0.1, .activation_bytes = 64, .offload_bytes = 64});
  const auto offloaded = plan::AddOffloads(schedule, costs, plan::FirstChunks(schedule.shape, 1));
  ASSERT_GT(offloaded->offloaded, 6);
  EmulatedPipeline pipeline(schedule.shape,
                            {.copies = {.fail_at_copy = 2}, .seconds_per_unit = 1e-3});
  InProcessPipeline links(2);
  const StageReports reports = pipeline.RunStep(offloaded->schedule, costs, AllLinks(links, 2));
  EXPECT_TRUE(std::ranges::any_of(reports, [](const absl::StatusOr<StageReport>& report) {
    return report.status().message().find("copy 2 failed on purpose") != std::string::npos &&
           absl::IsInternal(report.status());
  }));
  EXPECT_TRUE(std::ranges::none_of(
      reports, [](const absl::StatusOr<StageReport>& report) { return report.ok(); }));
  for (const int stage : {0, 1}) {
    const bool own = absl::IsInternal(reports[static_cast<size_t>(stage)].status());
    EXPECT_TRUE(own || pipeline.runner(stage).lost_neighbour());
  }
  EXPECT_FALSE(pipeline.runner(0).lost_neighbour() && pipeline.runner(1).lost_neighbour());
  ExpectAllGivenBack(pipeline);
}

TEST(StageRunner, TellsWhereTheTimeWent) {
  const plan::Schedule schedule = plan::GPipe(2, 1, 4);
  const plan::ScheduleCosts costs(schedule.shape, {.forward = 0.02,
                                                   .backward_input = 0.001,
                                                   .backward_weights = 0.001,
                                                   .offload = 0.001,
                                                   .reload = 0.001,
                                                   .activation_bytes = 50000,
                                                   .offload_bytes = 50000});
  const auto offloaded = plan::AddOffloads(schedule, costs, plan::FirstChunks(schedule.shape, 1));
  ASSERT_GT(offloaded->offloaded, 0);
  // Copies take fifty times as long as was planned.
  EmulatedPipeline pipeline(schedule.shape, {.copies = {.bytes_per_second = 1e6}});
  InProcessPipeline links(2);
  const StageReports reports =
      pipeline.RunStep(offloaded->schedule, costs, AllLinks(links, 2), /*record_spans=*/true);
  ASSERT_TRUE(reports[0].ok() && reports[1].ok());
  const StageReport& first = *reports[0];
  EXPECT_GE(first.compute_seconds, 0.08);
  ASSERT_EQ(first.microbatch_seconds.size(), 4U);
  EXPECT_NEAR(
      std::accumulate(first.microbatch_seconds.begin(), first.microbatch_seconds.end(), 0.0),
      first.compute_seconds, 1e-9);
  // A paced device that is late with one microbatch catches up with the next.
  EXPECT_GT(std::ranges::min(first.microbatch_seconds), 0);
  EXPECT_GE(first.Of(Stall::kTransfer).seconds, first.Of(Stall::kTransfer).longest_seconds);
  EXPECT_GE(first.Of(Stall::kTransfer).longest_seconds, 0.02);
  EXPECT_THAT(first.Of(Stall::kTransfer).longest,
              testing::MatchesRegex("(offload|reload) chunk 0 microbatch [0-3]"));
  EXPECT_GE(reports[1]->Of(Stall::kNeighbour).longest_seconds, 0.01);
  EXPECT_GE(reports[1]->neighbour_seconds[0], 0.01);
  EXPECT_EQ(reports[1]->neighbour_seconds[1], 0);
  EXPECT_THAT(
      reports[1]->Of(Stall::kNeighbour).longest,
      testing::MatchesRegex("the activation of chunk 0 microbatch [0-3] from stage 0|its last.*"));
  const auto count = [&](StageSpan::Kind kind) {
    return std::ranges::count(first.spans, kind, &StageSpan::kind);
  };
  EXPECT_EQ(count(StageSpan::Kind::kCompute), 8);
  EXPECT_GE(count(StageSpan::Kind::kOffload), 1);
  EXPECT_EQ(count(StageSpan::Kind::kOffload), count(StageSpan::Kind::kReload));
  EXPECT_GE(count(StageSpan::Kind::kTransferWait), 1);
  for (const StageSpan& span : first.spans) {
    if (span.kind == StageSpan::Kind::kOffload || span.kind == StageSpan::Kind::kReload) {
      EXPECT_GE(span.length, absl::Milliseconds(25));
    }
  }
}

}  // namespace
}  // namespace shoal::worker
