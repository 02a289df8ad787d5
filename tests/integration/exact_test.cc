// Exact mode: the same bits whatever the delays, the number of servers, workers and threads, and
// whether or not the run was interrupted.
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/final_state.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;

// Small minibatches: what matters is that workers, servers and delays mix, not how much is learnt.
std::string ExactJob(int servers, int workers, int steps, const std::string& checkpoints,
                     int threads = 1) {
  return fmt::format(R"(
model: {0}/stories260k
data: {{train: {0}/gsm8k/train.jsonl, fields: {{prompt: question, completion: answer}},
    max_sequence_tokens: 1024, microbatch_tokens: 1024, oversize: skip}}
train: {{steps: {1}, minibatch_samples: 4, compute: fp32, learning_rate: 1e-3, schedule: cosine,
    warmup_steps: 5, push: microbatch, threads_per_worker: {5}}}
service: {{accumulate: exact, partition_bytes: 64KiB, threads_per_server: {5}}}
cluster: {{local: {{servers: {2}, workers: {3}}}}}
checkpoint: {{directory: {4}, every_steps: 0, export_huggingface: false}}
)",
                     TestData(), steps, servers, workers, checkpoints, threads);
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
    const TrainRun result = Train(ExactJob(servers, 2, 10, checkpoints, 1 + run % 4),
                                  {"--fault-seed", fmt::format("{}", run + 1)});
    ASSERT_EQ(result.program.exit_code, 0) << result.program.errors;
    const std::vector<float> state = FinalState(checkpoints);
    if (reference.empty()) {
      reference = state;
    }
    EXPECT_TRUE(state == reference) << "run " << run << " with " << servers << " servers differs";
  }
}

// How many processes and threads run a job.
struct Shape {
  int servers = 1;
  int workers = 1;
  int threads = 1;  // of each process

  // Of twelve: each count of servers, and of workers, with both counts of threads.
  static Shape Of(int number) {
    return {.servers = 1 + number % 4,
            .workers = 1 + (number + number / 4) % 4,
            .threads = 1 + (number / 4 + number / 2) % 2};
  }
  // Differs in all three.
  Shape Other() const { return {5 - servers, 5 - workers, 3 - threads}; }
};

// Trains the job in these shapes, in every second one of them after `half` steps in another.
void ExpectTheSameBits(const std::vector<int>& shapes, int half,
                       const std::function<std::string(const Shape&, const std::string&)>& job) {
  std::vector<float> reference;
  for (const int number : shapes) {
    const Shape shape = Shape::Of(number);
    SCOPED_TRACE(fmt::format("{} servers, {} workers, {} threads", shape.servers, shape.workers,
                             shape.threads));
    const std::string checkpoints = FreshDirectory("shape");
    if (number % 2 == 1) {
      const TrainRun first =
          Train(job(shape.Other(), checkpoints), {"--steps", fmt::format("{}", half)});
      ASSERT_EQ(first.program.exit_code, 0) << first.program.errors;
    }
    const TrainRun run = Train(job(shape, checkpoints), {"--resume=auto"});
    ASSERT_EQ(run.program.exit_code, 0) << run.program.errors;
    const std::vector<float> state = FinalState(checkpoints);
    if (reference.empty()) {
      reference = state;
    }
    EXPECT_TRUE(state == reference);
  }
}

TEST_F(Exact, AnyNumberOfServersAndWorkersEndsWithTheSameBits) {
  constexpr int kSteps = 60;
  ExpectTheSameBits({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 25,
                    [](const Shape& shape, const std::string& checkpoints) {
                      return ExactJob(shape.servers, shape.workers, kSteps, checkpoints,
                                      shape.threads);
                    });
}

// Its products are large enough to be cut into pieces, which threads share. A few of the shapes, or
// all of them (SHOAL_ALL_SHAPES).
TEST(ExactInBf16, ThreadsServersAndWorkersChangeNoBit) {
  const std::string folder = FreshDirectory("bf16");
  ASSERT_NO_FATAL_FAILURE(MakeModel(folder, "25m"));
  std::vector<int> shapes = {0, 10, 5};
  if (std::getenv("SHOAL_ALL_SHAPES") != nullptr) {
    shapes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  }
  ExpectTheSameBits(shapes, 2, [&](const Shape& shape, const std::string& checkpoints) {
    return fmt::format(R"(
model: {0}/model
data: {{train: {0}/train.jsonl, template: chatml, max_sequence_tokens: 256, microbatch_tokens: 256,
    oversize: skip}}
train: {{steps: 3, minibatch_samples: 4, compute: bf16, learning_rate: 1e-3,
    threads_per_worker: {3}}}
service: {{accumulate: exact, threads_per_server: {3}}}
cluster: {{local: {{servers: {1}, workers: {2}}}}}
checkpoint: {{directory: {4}, every_steps: 0, export_huggingface: false}}
)",
                       folder, shape.servers, shape.workers, shape.threads, checkpoints);
  });
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

TEST_F(Exact, OverTlsEqualsPlainText) {
  const std::string plain = FreshDirectory("plain"), encrypted = FreshDirectory("encrypted");
  const std::string certificates = encrypted + "/certificates";
  const ProgramResult made = RunShoal({"tls", "init", certificates});
  ASSERT_EQ(made.exit_code, 0) << made.errors;
  EXPECT_EQ(RunShoal({"tls", "init", certificates}).exit_code, 2) << "nothing is replaced";
  ASSERT_EQ(Train(ExactJob(2, 2, 10, plain)).program.exit_code, 0);
  const TrainRun run = Train(ExactJob(2, 2, 10, encrypted), {"--tls", certificates});
  ASSERT_EQ(run.program.exit_code, 0) << run.program.errors;
  EXPECT_TRUE(FinalState(encrypted) == FinalState(plain));

  const std::string records = FreshDirectory("records");
  const std::vector<std::string> over_tcp = {"--set", "service.transports=[tcp]", "--set",
                                             "service.encryption=on"};
  const TrainRun refused = Train(ExactJob(2, 2, 10, records), over_tcp);
  EXPECT_NE(refused.program.exit_code, 0);
  EXPECT_THAT(refused.program.errors, HasSubstr("keys would travel in plain text"));
  std::vector<std::string> with_tls = over_tcp;
  with_tls.insert(with_tls.end(), {"--tls", certificates});
  const TrainRun sealed = Train(ExactJob(2, 2, 10, records), with_tls);
  ASSERT_EQ(sealed.program.exit_code, 0) << sealed.program.errors;
  EXPECT_TRUE(FinalState(records) == FinalState(plain));
}

}  // namespace
}  // namespace shoal::testing
