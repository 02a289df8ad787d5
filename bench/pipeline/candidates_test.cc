#include "bench/pipeline/candidates.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using ::testing::ElementsAre;

// Returns one stage with this peak, and a makespan that gives this throughput.
Candidate With(double peak, double throughput) {
  Candidate candidate;
  candidate.schedule.shape = {.stages = 1, .chunks = 1, .microbatches = 1};
  candidate.times.makespan = kStageSeconds / throughput;
  candidate.times.stages = {
      {.peak_device_bytes = static_cast<int64_t>(peak * static_cast<double>(kStageBytes))}};
  return candidate;
}

TEST(ParetoFront, IsWhatNothingBeatsInBoth) {
  // Best at least; beaten in both; more for more; as much for more; less for as little.
  EXPECT_THAT(ParetoFront({With(1, 5), With(3, 4), With(2, 8), With(4, 8), With(1, 3)}),
              ElementsAre(0, 2));
  EXPECT_THAT(ParetoFront({}), ElementsAre());
}

}  // namespace
}  // namespace shoal::bench
