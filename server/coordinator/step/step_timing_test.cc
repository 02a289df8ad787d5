#include "server/coordinator/step/step_timing.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/step/report_sum.h"

namespace shoal::server {
namespace {

proto::FinishedReport Report(double busy, double get, double push, double layer) {
  proto::FinishedReport report;
  report.set_busy_seconds(busy);
  report.set_get_wait_seconds(get);
  report.set_push_wait_seconds(push);
  report.set_layer_wait_seconds(layer);
  return report;
}

std::vector<proto::LastStep> Describe(const StepTiming& timing) {
  std::vector<proto::LastStep> steps(1);
  steps[0].set_waited_for("of the step before");
  DescribeStep(timing, steps);
  return steps;
}

TEST(StepTiming, SharesAddUpAndTheLastToReportIsNamed) {
  StepTiming timing{.step = 7,
                    .seconds = 10,
                    .reports = {Report(5, 1, 0.5, 0), Report(9.5, 0, 0, 0), Report(9.6, 0, 0, 0)},
                    .reported_at = {absl::FromUnixSeconds(7), absl::FromUnixSeconds(10),
                                    absl::FromUnixSeconds(9)}};
  EXPECT_NEAR(IdleShare(timing), 1 - 24.1 / 30, 1e-12);
  const std::vector<proto::LastStep> steps = Describe(timing);
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[0].step(), 7);
  EXPECT_EQ(steps[0].seconds(), 10);
  EXPECT_DOUBLE_EQ(steps[0].compute(), 0.5);
  EXPECT_DOUBLE_EQ(steps[0].get_wait(), 0.1);
  EXPECT_DOUBLE_EQ(steps[0].push_wait(), 0.05);
  EXPECT_NEAR(steps[0].step_wait(), 0.35, 1e-12);
  EXPECT_EQ(steps[0].waited_for(), "worker-1 (0.35 of the step)");
  EXPECT_EQ(steps[1].waited_for(), "") << "nobody waits for itself";
  EXPECT_EQ(steps[2].waited_for(), "") << "too short to name";
}

TEST(StepTiming, UtilizationIsUnknownWithoutEveryPeak) {
  StepTiming timing{.step = 1, .seconds = 2, .reports = {Report(1, 0, 0, 0), Report(1, 0, 0, 0)}};
  EXPECT_EQ(Utilization(100, timing), 0);
  timing.reports[0].set_peak_flops(30);
  EXPECT_EQ(Utilization(100, timing), 0);
  timing.reports[1].set_peak_flops(70);
  EXPECT_DOUBLE_EQ(Utilization(100, timing), 0.5);
  timing.reports[1].set_peak_flops(std::nan(""));
  EXPECT_EQ(Utilization(100, timing), 0);
  timing.reports[1].set_peak_flops(1e-320);
  timing.reports.erase(timing.reports.begin());
  EXPECT_EQ(Utilization(100, timing), 0) << "no number";
  EXPECT_EQ(Utilization(100, {}), 0);
}

TEST(StepTiming, AtLayersTheOneThatWaitsLeastIsNamed) {
  StepTiming timing{.step = 1,
                    .seconds = 10,
                    .synchronization = plan::Synchronization::kLayer,
                    .reports = {Report(4, 0, 0, 6), Report(9.9, 0, 0, 0.1), Report(5, 0, 0, 5)},
                    .reported_at = std::vector<absl::Time>(3, absl::FromUnixSeconds(10))};
  const std::vector<proto::LastStep> steps = Describe(timing);
  EXPECT_EQ(steps[0].waited_for(), "worker-1 (0.60 of the step)");
  EXPECT_EQ(steps[2].waited_for(), "worker-1 (0.50 of the step)");
  EXPECT_EQ(steps[1].waited_for(), "");
}

TEST(StepTiming, AServerIsNamedWhereItIsWaitedForMost) {
  StepTiming timing{.step = 1,
                    .seconds = 10,
                    .reports = {Report(4, 5, 0, 0), Report(4, 0, 5, 0)},
                    .reported_at = std::vector<absl::Time>(2, absl::FromUnixSeconds(10))};
  for (proto::FinishedReport& report : timing.reports) {
    report.add_get_wait_by_server(0.5);
    report.add_get_wait_by_server(4.5);
  }
  const std::vector<proto::LastStep> steps = Describe(timing);
  EXPECT_EQ(steps[0].waited_for(), "server-1 (0.50 of the step)");
  EXPECT_EQ(steps[1].waited_for(), "") << "waits for pushes are not told by server";
  timing.reports[0].clear_get_wait_by_server();
  EXPECT_EQ(Describe(timing)[0].waited_for(), "");
}

TEST(StepTiming, AStageIsNamedWhereItIsWaitedForMost) {
  StepTiming timing{
      .step = 1,
      .seconds = 10,
      .groups = WorkerGroups(4, 2),
      .reports = {Report(9, 0, 0, 0), Report(4, 0.5, 0, 0), Report(4, 0, 0, 0), Report(4, 0, 0, 0)},
      .reported_at = std::vector<absl::Time>(4, absl::FromUnixSeconds(10))};
  const auto waits = [&](size_t worker, double first, double second) {
    timing.reports[worker].add_neighbour_wait_seconds(first);
    timing.reports[worker].add_neighbour_wait_seconds(second);
  };
  waits(1, 5, 0);
  waits(2, 0, 4);
  timing.reports[3].set_transfer_wait_seconds(5);
  const std::vector<proto::LastStep> steps = Describe(timing);
  EXPECT_EQ(steps[0].waited_for(), "");
  EXPECT_DOUBLE_EQ(steps[1].neighbour_wait(), 0.5);
  EXPECT_NEAR(steps[1].step_wait(), 0.05, 1e-12);
  EXPECT_EQ(steps[1].waited_for(), "worker-0 (0.50 of the step)");
  EXPECT_EQ(steps[2].waited_for(), "worker-3 (0.40 of the step)");
  EXPECT_DOUBLE_EQ(steps[3].transfer_wait(), 0.5);
  EXPECT_NEAR(steps[3].step_wait(), 0.1, 1e-12);
}

TEST(StepTiming, StaysWithinBoundsWhateverIsReported) {
  StepTiming timing{.seconds = 1, .reports = {Report(50, -3, 2, 0)}, .reported_at = {{}}};
  EXPECT_EQ(IdleShare(timing), 0);
  const proto::LastStep last = Describe(timing)[0];
  EXPECT_EQ(last.compute(), 1);
  EXPECT_EQ(last.get_wait(), 0);
  EXPECT_EQ(last.step_wait(), 0);
  timing.seconds = 0;
  EXPECT_EQ(IdleShare(timing), 0);
  EXPECT_EQ(Describe(timing)[0].compute(), 0);
  EXPECT_EQ(IdleShare({}), 0);
}

TEST(ReportSum, RoundsOfAWorkerAddUp) {
  std::optional<proto::FinishedReport> sum;
  proto::FinishedReport first = Report(5, 1, 0.5, 0);
  first.set_step(4);
  first.add_get_wait_by_server(1);
  proto::FinishedReport second = Report(2, 0.25, 0, 0);
  second.set_step(4);
  second.add_get_wait_by_server(0.5);
  second.add_get_wait_by_server(2);
  AddRound(first, sum);
  AddRound(second, sum);
  EXPECT_EQ(sum->busy_seconds(), 7);
  EXPECT_EQ(sum->get_wait_seconds(), 1.25);
  EXPECT_EQ(sum->push_wait_seconds(), 0.5);
  EXPECT_EQ(sum->step(), 4);
  EXPECT_EQ(sum->get_wait_by_server(0), 1.5);
  EXPECT_EQ(sum->get_wait_by_server(1), 2);
}

TEST(StepTiming, ConnectionsAreTakenWhereTheyAreOthers) {
  proto::FinishedReport report;
  report.add_connections()->set_peer("server-0");
  proto::LastStep last;
  TakeConnections(report, last);
  ASSERT_EQ(last.connections_size(), 1);
  const proto::DataConnection* const taken = &last.connections(0);
  TakeConnections(report, last);
  EXPECT_EQ(&last.connections(0), taken);
  report.mutable_connections(0)->set_transport("tcp");
  TakeConnections(report, last);
  EXPECT_EQ(last.connections(0).transport(), "tcp");
  report.clear_connections();
  TakeConnections(report, last);
  EXPECT_TRUE(last.connections().empty());
}

}  // namespace
}  // namespace shoal::server
