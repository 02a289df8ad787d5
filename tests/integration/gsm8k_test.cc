// The proof on real input: the pre-trained stories260k, fine-tuned on GSM8K through real processes.
#include <cmath>
#include <numeric>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

struct Cluster {
  int servers = 1;
  int workers = 1;
};

std::string Gsm8kJob(const Cluster& cluster, int steps, const std::string& accumulate = "float") {
  return fmt::format(R"(
model: {0}/stories260k
data: {{train: {0}/gsm8k/train.jsonl, template: plain, fields: {{prompt: question, completion: answer}},
       max_sequence_tokens: 2048, microbatch_tokens: 4096, oversize: skip, seed: 1}}
train: {{steps: {1}, minibatch_samples: 32, compute: fp32, learning_rate: 1e-3, schedule: cosine, warmup_steps: 10}}
service: {{accumulate: {2}, partition_bytes: 64KiB}}
cluster: {{local: {{servers: {3}, workers: {4}}}}}
checkpoint: {{directory: {5}, export_huggingface: false}}
)",
                     TestData(), steps, accumulate, cluster.servers, cluster.workers,
                     FreshDirectory("gsm8k"));
}

double MeanLoss(const std::vector<StepLine>& steps, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) {
    sum += steps[i].loss;
  }
  return sum / static_cast<double>(end - begin);
}

class Gsm8k : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestData().empty()) {
      GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
    }
  }
};

TEST_F(Gsm8k, LossFallsAlongTheSameCurveForAnyClusterShape) {
  constexpr int kSteps = 200;
  const Cluster clusters[] = {{1, 1}, {2, 2}, {3, 4}};
  std::vector<StepLine> reference;
  for (const Cluster& cluster : clusters) {
    SCOPED_TRACE(fmt::format("{} servers, {} workers", cluster.servers, cluster.workers));
    const TrainRun run = Train(Gsm8kJob(cluster, kSteps), {}, absl::Minutes(10));
    ASSERT_EQ(run.program.exit_code, 0) << run.program.errors;
    ASSERT_EQ(run.steps.size(), static_cast<size_t>(kSteps));
    // Steadily: each quarter's mean loss is below that of the quarter before.
    for (size_t quarter = 1; quarter < 4; ++quarter) {
      EXPECT_LT(MeanLoss(run.steps, quarter * 50, quarter * 50 + 50),
                MeanLoss(run.steps, quarter * 50 - 50, quarter * 50));
    }
    if (reference.empty()) {
      reference = run.steps;
      continue;
    }
    for (size_t i = 0; i < reference.size(); ++i) {
      EXPECT_EQ(run.steps[i].target_tokens, reference[i].target_tokens);
      EXPECT_NEAR(run.steps[i].loss, reference[i].loss, 1e-3 * reference[i].loss)
          << "step " << i + 1;
    }
  }
  std::printf("loss of the first and last 10 steps: %.4f -> %.4f\n", MeanLoss(reference, 0, 10),
              MeanLoss(reference, reference.size() - 10, reference.size()));
}

}  // namespace
}  // namespace shoal::testing
