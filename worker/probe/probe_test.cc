#include "worker/probe/probe.h"

#include "core/plan/pipeline/pace_costs.h"
#include "gtest/gtest.h"
#include "worker/model/testing/small_model.h"
#include "worker/ops/testing/late_device.h"

namespace shoal::worker {
namespace {

TEST(Probe, FindsRatesThatPlansCanBeMadeWith) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto pace = ProbePace(testing_model::FullSpec(),
                                {.probe = {.compute = compute, .tokens = 128, .rounds = 2}});
    ASSERT_TRUE(pace.ok()) << pace.status();
    EXPECT_TRUE(plan::Validate(*pace).ok());
    EXPECT_TRUE(pace->CanOffload());
    EXPECT_GT(pace->elementwise_bytes_per_second, 0);
    EXPECT_GT(pace->attention_forward_flops, 0);
    EXPECT_GT(pace->attention_backward_flops, 0);
    EXPECT_GT(pace->head_flops, 0);
    EXPECT_FALSE(pace->duplex);
  }
}

// Never measures more than the set rate of a bus.
TEST(Probe, SeesTheBusThatCopiesEmulate) {
  const auto pace = ProbePace(testing_model::SmallSpec(), {.probe = {.tokens = 256, .rounds = 3},
                                                           .copy_bytes_per_second = 50e6});
  ASSERT_TRUE(pace.ok()) << pace.status();
  EXPECT_LE(pace->offload_bytes_per_second, 50e6);
  EXPECT_LE(pace->reload_bytes_per_second, 50e6);
}

// On a device that computes asynchronously only its events tell the time.
TEST(Probe, MeasuresAnyMachine) {
  for (const bool duplex : {false, true}) {
    const auto result =
        Probe(testing_model::SmallSpec(), {.tokens = 128, .rounds = 2, .duplex = duplex},
              MakeLateComputeDevice(/*seed=*/1));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(plan::Validate(result->pace).ok());
    EXPECT_EQ(result->pace.duplex, duplex);
    EXPECT_EQ(duplex,
              result->pace.offload_bytes_per_second == result->duplex_offload_bytes_per_second);
    EXPECT_GT(result->duplex_reload_bytes_per_second, 0);
    EXPECT_GT(result->forward_beside_copies, 0);
  }
}

TEST(Probe, RefusesNothingToMeasure) {
  EXPECT_FALSE(ProbePace(testing_model::SmallSpec(), {.probe = {.tokens = 0}}).ok());
  EXPECT_FALSE(ProbePace(testing_model::SmallSpec(), {.probe = {.rounds = 0}}).ok());
}

}  // namespace
}  // namespace shoal::worker
