// Exact mode: the same bits whatever the delays, the number of servers and workers, and whether or
// not the run was interrupted.
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/support/final_state.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

// Small minibatches: what matters is that workers, servers and delays mix, not how much is learnt.
std::string ExactJob(int servers, int workers, int steps, const std::string& checkpoints) {
  return fmt::format(R"(
model: {0}/stories260k
data: {{train: {0}/gsm8k/train.jsonl, fields: {{prompt: question, completion: answer}},
    max_sequence_tokens: 1024, microbatch_tokens: 1024, oversize: skip}}
train: {{steps: {1}, minibatch_samples: 4, compute: fp32, learning_rate: 1e-3, schedule: cosine,
    warmup_steps: 5, push: microbatch}}
service: {{accumulate: exact, partition_bytes: 64KiB}}
cluster: {{local: {{servers: {2}, workers: {3}}}}}
checkpoint: {{directory: {4}, every_steps: 0, export_huggingface: false}}
)",
                     TestData(), steps, servers, workers, checkpoints);
}

class Exact : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestData().empty()) {
      GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
    }
  }
};

TEST_F(Exact, FiveRunsWithRandomDelaysEndWithTheSameBits) {
  std::vector<float> reference;
  for (int run = 0; run < 5; ++run) {
    const std::string checkpoints = FreshDirectory("exact");
    const int servers = 1 + run % 3;
    const TrainRun result =
        Train(ExactJob(servers, 2, 10, checkpoints), {"--fault-seed", fmt::format("{}", run + 1)});
    ASSERT_EQ(result.program.exit_code, 0) << result.program.errors;
    const std::vector<float> state = FinalState(checkpoints);
    if (reference.empty()) {
      reference = state;
    }
    EXPECT_TRUE(state == reference) << "run " << run << " with " << servers << " servers differs";
  }
}

// Twelve shapes of a run, half of them changed in the middle.
TEST_F(Exact, AnyNumberOfServersAndWorkersEndsWithTheSameBits) {
  constexpr int kSteps = 60;
  const auto job = [](int servers, int workers, const std::string& checkpoints) {
    std::string yaml = ExactJob(servers, workers, kSteps, checkpoints);
    return yaml.replace(yaml.find("push: microbatch"), 16, "threads_per_worker: 1");
  };
  std::vector<float> reference;
  for (int shape = 0; shape < 12; ++shape) {
    const int servers = 1 + shape % 4;
    const int workers = 1 + (shape + shape / 4) % 4;
    SCOPED_TRACE(fmt::format("{} servers, {} workers", servers, workers));
    const std::string checkpoints = FreshDirectory("shape");
    if (shape % 2 == 1) {
      const int others = 5 - workers;
      ASSERT_EQ(Train(job(5 - servers, others, checkpoints), {"--steps", "25"}).program.exit_code,
                0);
    }
    const TrainRun run = Train(job(servers, workers, checkpoints), {"--resume=auto"});
    ASSERT_EQ(run.program.exit_code, 0) << run.program.errors;
    const std::vector<float> state = FinalState(checkpoints);
    if (reference.empty()) {
      reference = state;
    }
    EXPECT_TRUE(state == reference);
  }
}

TEST_F(Exact, InterruptedAndResumedEqualsUninterrupted) {
  const std::string whole = FreshDirectory("whole"), halves = FreshDirectory("halves");
  ASSERT_EQ(Train(ExactJob(2, 2, 30, whole)).program.exit_code, 0);
  ASSERT_EQ(Train(ExactJob(2, 2, 30, halves), {"--steps", "20"}).program.exit_code, 0);
  const TrainRun second = Train(ExactJob(3, 2, 30, halves), {"--resume"});
  ASSERT_EQ(second.program.exit_code, 0) << second.program.errors;
  ASSERT_EQ(second.steps.size(), 10u);
  EXPECT_EQ(second.steps.front().step, 21);
  EXPECT_TRUE(FinalState(halves) == FinalState(whole));
}

}  // namespace
}  // namespace shoal::testing
