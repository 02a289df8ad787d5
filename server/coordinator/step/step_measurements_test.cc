#include "server/coordinator/step/step_measurements.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr plan::CostModel kSeconds = {.per_microbatch = 0.1, .per_token = 1e-3};

plan::Job JobWith(plan::Assignment assignment, plan::CostSource cost = plan::CostSource::kFlops) {
  plan::Job job;
  job.plan.assignment = assignment;
  job.plan.cost = cost;
  return job;
}

// Reports of two workers, the second at half the speed of the first.
void Measure(StepMeasurements& measurements, int microbatches) {
  for (const int worker : {0, 1}) {
    proto::FinishedReport report;
    for (int i = 0; i < microbatches; ++i) {
      proto::MicrobatchTime& time = *report.add_times();
      time.set_tokens(100 * (1 + i % 7));
      time.set_squared_tokens(static_cast<double>(time.tokens() * time.tokens()) / (1 + i % 3));
      time.set_seconds(kSeconds.Microbatch(time.tokens(), time.squared_tokens()) * (1 + worker));
    }
    measurements.Add(worker, report);
  }
  measurements.Refit();
}

TEST(StepMeasurements, PlansGetOnlyWhatTheJobAsksFor) {
  for (const auto assignment :
       {plan::Assignment::kLbMini, plan::Assignment::kSpeedWeighted, plan::Assignment::kDynamic}) {
    for (const auto cost : {plan::CostSource::kFlops, plan::CostSource::kFitted}) {
      StepMeasurements measurements(JobWith(assignment, cost), 2);
      const bool speeds = assignment != plan::Assignment::kLbMini;
      const bool fitted = cost == plan::CostSource::kFitted;
      EXPECT_EQ(measurements.ShapePlans(), speeds || fitted);
      EXPECT_THAT(measurements.Inputs().speeds, IsEmpty());
      EXPECT_FALSE(measurements.Inputs().cost.has_value());
      Measure(measurements, 30);
      EXPECT_EQ(measurements.Inputs().groups, 2);
      EXPECT_EQ(measurements.Inputs().speeds.size(), speeds ? 2U : 0U);
      ASSERT_EQ(measurements.Inputs().cost.has_value(), fitted);
      if (speeds) {
        const std::vector<double> known = measurements.Inputs().speeds;
        EXPECT_NEAR(known[0] / known[1], 2, 1e-6);
      }
    }
  }
}

// Packs are given out by speed; what is packed follows from the job alone.
TEST(StepMeasurements, ExactModePacksByNoMeasuredCost) {
  plan::Job job = JobWith(plan::Assignment::kDynamic, plan::CostSource::kFitted);
  job.service.accumulate = plan::Accumulate::kExact;
  StepMeasurements measurements(job, 2);
  Measure(measurements, 30);
  EXPECT_EQ(measurements.Inputs().speeds.size(), 2U);
  EXPECT_FALSE(measurements.Inputs().cost.has_value());
}

TEST(StepMeasurements, PredictsByWhatWasMeasured) {
  plan::StepPlan plan;
  plan.workers = {{{.samples = {1}, .tokens = 100, .squared_tokens = 1e4, .cost = 1}},
                  {{.samples = {2}, .tokens = 100, .squared_tokens = 1e4, .cost = 1}}};
  StepMeasurements measurements(JobWith(plan::Assignment::kLbMini), 2);
  EXPECT_DOUBLE_EQ(measurements.PredictIdleShare(plan), 0);
  Measure(measurements, 30);
  EXPECT_NEAR(measurements.PredictIdleShare(plan), 0.25, 1e-6);
}

// Learns from steps that ran, except the first, what they take beyond their plans.
TEST(StepMeasurements, PredictsWhatStepsTakeBeyondTheirPlans) {
  plan::StepPlan plan;
  plan.workers = {{{.samples = {1}, .tokens = 100, .squared_tokens = 1e4, .cost = 1}},
                  {{.samples = {2}, .tokens = 100, .squared_tokens = 1e4, .cost = 1}}};
  for (const auto synchronization : {plan::Synchronization::kStep, plan::Synchronization::kLayer}) {
    plan::Job job = JobWith(plan::Assignment::kLbMini);
    job.train.synchronization = synchronization;
    StepMeasurements measurements(job, 2);
    measurements.AddStep(
        plan, {.pace_seconds = 0.6, .busy_seconds = 0.6, .seconds = 9});  // the first: connects
    Measure(measurements, 30);
    EXPECT_NEAR(measurements.PredictIdleShare(plan), 0.25, 1e-6);
    // 0.2 s and 0.4 s of computing in a step of 0.4 s, and 0.1 s more.
    measurements.AddStep(plan, {.pace_seconds = 0.6, .busy_seconds = 0.6, .seconds = 0.5});
    EXPECT_NEAR(measurements.PredictIdleShare(plan), 1 - 0.6 / (2 * 0.5), 1e-6);
    // One slow step counts in part; a fast one does not go below its plan.
    measurements.AddStep(plan, {.pace_seconds = 0.6, .busy_seconds = 0.6, .seconds = 0.6});
    EXPECT_NEAR(measurements.PredictIdleShare(plan), 1 - 0.6 / (2 * 0.53), 1e-6);
    for (int step = 0; step < 60; ++step) {
      measurements.AddStep(plan, {.pace_seconds = 0.6, .busy_seconds = 0.6, .seconds = 0.3});
    }
    EXPECT_NEAR(measurements.PredictIdleShare(plan), 0.25, 1e-6);
  }
}

// A group goes at the pace of its slowest stage; waiting for that is idle time too.
TEST(StepMeasurements, PredictsWhatStagesLeaveIdle) {
  plan::StepPlan plan;
  plan.workers = {{{.samples = {1}, .tokens = 100, .squared_tokens = 1e4, .cost = 1}},
                  {{.samples = {2}, .tokens = 100, .squared_tokens = 1e4, .cost = 1}}};
  plan::Job job = JobWith(plan::Assignment::kLbMini);
  job.cluster.pipeline.stages = 2;
  StepMeasurements measurements(job, 2);
  for (int step = 0; step < 2; ++step) {
    // 0.4 s on the slowest stage of each group, 0.2 s on the other, and 0.1 s to fill and drain.
    measurements.AddStep(plan, {.pace_seconds = 0.8, .busy_seconds = 1.2, .seconds = 0.5});
  }
  EXPECT_NEAR(measurements.PredictIdleShare(plan), 1 - 1.2 / (4 * 0.5), 1e-9);
}

// With too few different lengths to fit costs, uses plans' own costs and whole steps.
TEST(StepMeasurements, PredictsBeforeCostsAreFitted) {
  plan::StepPlan plan;
  plan.workers = {{{.samples = {1}, .tokens = 100, .squared_tokens = 1e4, .cost = 3e12}},
                  {{.samples = {2}, .tokens = 100, .squared_tokens = 1e4, .cost = 1e12}}};
  StepMeasurements measurements(JobWith(plan::Assignment::kLbMini), 2);
  EXPECT_NEAR(measurements.PredictIdleShare(plan), 1 - 4.0 / 6, 1e-9);
  measurements.AddStep(
      plan, {.pace_seconds = 0.4, .busy_seconds = 0.4, .seconds = 5});  // the first: connects
  measurements.AddStep(plan, {.pace_seconds = 0.4, .busy_seconds = 0.4, .seconds = 0.35});
  // 0.3 s on the busiest worker, and 0.05 s more.
  EXPECT_NEAR(measurements.PredictIdleShare(plan), 1 - 0.4 / (2 * 0.35), 1e-9);
}

TEST(StepMeasurements, DrawsByMeasuredSeconds) {
  plan::StepPlan plan;
  plan.workers.resize(2);
  for (int64_t i = 0; i < 6; ++i) {
    plan.workers[static_cast<size_t>(i % 2)].push_back(
        {.samples = {i}, .tokens = 100, .squared_tokens = 1e4, .cost = 1e15});
  }
  StepMeasurements measurements(JobWith(plan::Assignment::kDynamic), 2);
  Measure(measurements, 30);
  // A microbatch takes 0.2 s on worker 0 and 0.4 s on worker 1.
  plan::DrawQueue queue = measurements.MakeDrawQueue(plan);
  queue.Start(0);
  EXPECT_NE(*queue.Draw(0, 1, 0.2, 0), nullptr);
  EXPECT_NE(*queue.Draw(0, 2, 0.4, 0), nullptr);
  EXPECT_NE(*queue.Draw(1, 1, 0.4, 0), nullptr);
  // Worker 1's last one would end at 1.2 s there, at 0.8 s here.
  EXPECT_NE(*queue.Draw(0, 3, 0.6, 0), nullptr);
  EXPECT_EQ(queue.Given(0).size(), 4U);
  EXPECT_EQ(*queue.Draw(0, 4, 0.8, 0), nullptr);
  EXPECT_EQ(*queue.Draw(1, 2, 0.8, 0), nullptr);
}

}  // namespace
}  // namespace shoal::server
