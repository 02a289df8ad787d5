// Whole jobs with each train.optimizer.
#include <gtest/gtest.h>

#include <string>

#include "tests/in_process/tiny_job.h"

namespace shoal::testing {
namespace {

class OptimizersTest : public TinyJobTest {
 protected:
  // Of the last ten steps.
  static double LastLoss(const ClusterRun& run) {
    double sum = 0;
    for (size_t i = run.steps.size() - 10; i < run.steps.size(); ++i) {
      sum += run.steps[i].loss();
    }
    return sum / 10;
  }
};

TEST_F(OptimizersTest, GiveTheSameBitsWhoeverHoldsWhat) {
  job_.train.steps = 4;
  job_.train.minibatch_samples = 12;
  job_.service.accumulate = plan::Accumulate::kExact;
  for (const plan::Optimizer kind : {plan::Optimizer::kAdamW8, plan::Optimizer::kLion}) {
    job_.train.optimizer = kind;
    const ClusterRun one = Run({.servers = 1, .workers = 1});
    ExpectSameBits(Run({.servers = 3, .workers = 2}), one);
    job_.train.optimizer = plan::Optimizer::kAdamW;
    EXPECT_NE(Run({.servers = 1, .workers = 1}).checksums, one.checksums);
  }
}

TEST_F(OptimizersTest, MomentsInEightBitsTrainAsThoseInThirtyTwo) {
  job_.train.steps = 200;
  job_.train.minibatch_samples = 8;
  job_.train.learning_rate = 1e-3;
  job_.train.epsilon = 1e-8;
  for (const double beta2 : {0.95, 0.999}) {
    job_.train.beta2 = beta2;
    job_.train.optimizer = plan::Optimizer::kAdamW;
    const double adamw = LastLoss(Run({.servers = 1, .workers = 1}));
    job_.train.optimizer = plan::Optimizer::kAdamW8;
    const ClusterRun run = Run({.servers = 1, .workers = 1});
    EXPECT_LT(LastLoss(run), 0.9 * run.steps[0].loss()) << "the job learns";
    EXPECT_NEAR(LastLoss(run), adamw, 0.01 * adamw);
    RecordProperty("adamw " + std::to_string(beta2), std::to_string(adamw));
    RecordProperty("adamw8 " + std::to_string(beta2), std::to_string(LastLoss(run)));
  }
}

}  // namespace
}  // namespace shoal::testing
