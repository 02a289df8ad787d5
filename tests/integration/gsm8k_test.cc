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
  int stages = 1;  // workers that share a copy of the model
};

std::string Gsm8kJob(const Cluster& cluster, int steps, const std::string& accumulate = "float") {
  return fmt::format(R"(
model: {0}/stories260k
data: {{train: {0}/gsm8k/train.jsonl, template: plain, fields: {{prompt: question,
    completion: answer}},
       max_sequence_tokens: 2048, microbatch_tokens: 4096, oversize: skip, seed: 1}}
train: {{steps: {1}, minibatch_samples: 32, compute: fp32, learning_rate: 1e-3, schedule: cosine,
    warmup_steps: 10}}
service: {{accumulate: {2}, partition_bytes: 64KiB}}
cluster: {{local: {{servers: {3}, workers: {4}}}, pipeline: {{stages: {5}}}}}
checkpoint: {{directory: {6}, export_huggingface: false}}
)",
                     TestData(), steps, accumulate, cluster.servers, cluster.workers,
                     cluster.stages, FreshDirectory("gsm8k"));
}

// Conversations of several turns and very uneven length.
std::string ChatsJob(const Cluster& cluster, int steps) {
  return fmt::format(R"(
model: {0}/stories260k
data: {{train: {0}/gsm8k-chats/train.jsonl, template: plain, max_sequence_tokens: 512,
    microbatch_tokens: 1024,
       oversize: truncate, seed: 1}}
train: {{steps: {1}, minibatch_samples: 16, compute: fp32, learning_rate: 1e-3, schedule: cosine,
    warmup_steps: 10}}
service: {{partition_bytes: 64KiB}}
cluster: {{local: {{servers: {2}, workers: {3}}}}}
checkpoint: {{directory: {4}, export_huggingface: false}}
)",
                     TestData(), steps, cluster.servers, cluster.workers, FreshDirectory("chats"));
}

double MeanLoss(const std::vector<StepLine>& steps, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) {
    sum += steps[i].loss;
  }
  return sum / static_cast<double>(end - begin);
}

void ExpectSameCurve(const std::vector<StepLine>& steps, const std::vector<StepLine>& reference) {
  ASSERT_EQ(steps.size(), reference.size());
  for (size_t i = 0; i < reference.size(); ++i) {
    EXPECT_EQ(steps[i].target_tokens, reference[i].target_tokens);
    EXPECT_NEAR(steps[i].loss, reference[i].loss, 1e-3 * reference[i].loss) << "step " << i + 1;
  }
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
  constexpr int kSteps = 120;
  constexpr size_t kQuarter = kSteps / 4;
  const Cluster clusters[] = {{1, 1}, {3, 4}, {2, 4, 2}};
  std::vector<StepLine> reference;
  for (const Cluster& cluster : clusters) {
    SCOPED_TRACE(fmt::format("{} servers, {} workers, {} stages", cluster.servers, cluster.workers,
                             cluster.stages));
    const TrainRun run = Train(Gsm8kJob(cluster, kSteps), {}, absl::Minutes(10));
    ASSERT_EQ(run.program.exit_code, 0) << run.program.errors;
    ASSERT_EQ(run.steps.size(), static_cast<size_t>(kSteps));
    // Steadily: each quarter's mean loss is below that of the quarter before.
    for (size_t quarter = 1; quarter < 4; ++quarter) {
      EXPECT_LT(MeanLoss(run.steps, quarter * kQuarter, (quarter + 1) * kQuarter),
                MeanLoss(run.steps, (quarter - 1) * kQuarter, quarter * kQuarter));
    }
    if (reference.empty()) {
      reference = run.steps;
      continue;
    }
    ExpectSameCurve(run.steps, reference);
  }
  std::printf("loss of the first and last 10 steps: %.4f -> %.4f\n", MeanLoss(reference, 0, 10),
              MeanLoss(reference, reference.size() - 10, reference.size()));
}

TEST_F(Gsm8k, ConversationsOfUnevenLengthAreLearntAlike) {
  constexpr int kSteps = 60;
  std::vector<StepLine> reference;
  for (const Cluster& cluster : {Cluster{1, 1}, Cluster{2, 3}}) {
    SCOPED_TRACE(fmt::format("{} servers, {} workers", cluster.servers, cluster.workers));
    const TrainRun run = Train(ChatsJob(cluster, kSteps), {}, absl::Minutes(3));
    ASSERT_EQ(run.program.exit_code, 0) << run.program.errors;
    ASSERT_EQ(run.steps.size(), static_cast<size_t>(kSteps));
    for (size_t third = 1; third < 3; ++third) {
      EXPECT_LT(MeanLoss(run.steps, third * 20, third * 20 + 20),
                MeanLoss(run.steps, third * 20 - 20, third * 20));
    }
    if (reference.empty()) {
      reference = run.steps;
    } else {
      ExpectSameCurve(run.steps, reference);
    }
  }
  std::printf("loss of the first and last 10 steps: %.4f -> %.4f\n", MeanLoss(reference, 0, 10),
              MeanLoss(reference, reference.size() - 10, reference.size()));
}

}  // namespace
}  // namespace shoal::testing
