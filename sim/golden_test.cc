// What is known of on-demand communication before any of it was simulated here: the acceptance
// facts of ODC (arXiv 2601.19362) that a simulator can hold.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing.h"

namespace shoal::sim {
namespace {

using plan::Assignment;
using plan::Synchronization;

ChoiceSummary SummaryOf(const SimulatorOptions& options, Synchronization synchronization,
                  Assignment assignment, const Minibatches& minibatches, int64_t steps) {
  const auto summary =
      Summarize(Simulator(options), {synchronization, assignment}, minibatches, steps);
  EXPECT_TRUE(summary.ok()) << summary.status();
  return *summary;
}

// 1.5B, LongAlign up to 64K, 4 samples on each of 8 devices, communication free.
TEST(Golden, Bubble) {
  const SimulatorOptions options = Options(FreeCluster(8));
  const Minibatches minibatches = DrawnMinibatches("longalign", 32);
  constexpr int64_t kSteps = 200;
  const auto run = [&](Synchronization synchronization, Assignment assignment) {
    return SummaryOf(options, synchronization, assignment, minibatches, kSteps);
  };
  const ChoiceSummary local_sort = run(Synchronization::kLayer, Assignment::kLocalSort);
  const ChoiceSummary baseline = run(Synchronization::kLayer, Assignment::kLbMicro);
  const ChoiceSummary lb_micro = run(Synchronization::kStep, Assignment::kLbMicro);
  const ChoiceSummary lb_mini = run(Synchronization::kStep, Assignment::kLbMini);
  const ChoiceSummary dynamic = run(Synchronization::kStep, Assignment::kDynamic);
  printf("%f %f %f %f %f, %f %f\n", local_sort.idle_share, baseline.idle_share, lb_micro.idle_share,
         lb_mini.idle_share, dynamic.idle_share, SpeedUp(lb_mini, baseline),
         SpeedUp(dynamic, baseline));
  EXPECT_NEAR(local_sort.idle_share, 0.51, 0.03);
  EXPECT_NEAR(baseline.idle_share, 0.32, 0.03);
  EXPECT_NEAR(lb_micro.idle_share, 0.27, 0.03);
  EXPECT_NEAR(lb_mini.idle_share, 0.12, 0.03);
  EXPECT_NEAR(SpeedUp(lb_mini, baseline), 1.30, 0.04);
  EXPECT_LE(dynamic.mean_seconds, lb_mini.mean_seconds * (1 + 1e-9));
}

}  // namespace
}  // namespace shoal::sim
