// Training over verbs, by the real programs: two servers and two workers end with the same bits as
// over tcp, also when queue pairs break, links go down and processes are killed on the way.
#include <fstream>
#include <map>
#include <regex>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/final_state.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

constexpr int kServers = 2;
constexpr int kWorkers = 2;
constexpr int kSteps = 10;

std::string Shoal() { return BinDirectory() + "/shoal"; }

void Run(std::vector<std::string> arguments) {
  Program program(arguments);
  const ProgramResult result = program.Wait(absl::Minutes(1));
  ASSERT_EQ(result.exit_code, 0) << fmt::format("{}", fmt::join(arguments, " ")) << "\n"
                                 << result.errors;
}

// Model and data made once: a small model with random weights, and sums to learn.
const std::string& Inputs() {
  static const std::string folder = [] {
    const std::string made = FreshDirectory("rdma-inputs");
    Run({Shoal(), "data", "synth", "--samples", "100", "--output", made + "/train.jsonl"});
    Run({Shoal(), "data", "tokenizer", made + "/train.jsonl", "--vocabulary", "320", "--output",
         made + "/tokenizer"});
    Run({Shoal(), "model", "init", "--shape", "tiny", "--tokenizer", made + "/tokenizer",
         "--output", made + "/model"});
    return made;
  }();
  return folder;
}

std::string Job(const std::string& transports, const std::string& checkpoints) {
  return fmt::format(R"(
model: {0}/model
data: {{train: {0}/train.jsonl, template: chatml, max_sequence_tokens: 256, microbatch_tokens: 256, oversize: skip}}
train: {{steps: {1}, minibatch_samples: 4, compute: fp32, learning_rate: 1e-3, warmup_steps: 2, push: microbatch}}
service: {{accumulate: exact, partition_bytes: 64KiB, transports: [{2}]}}
cluster: {{local: {{servers: {3}, workers: {4}}}}}
checkpoint: {{directory: {5}, every_steps: 0, export_huggingface: false}}
)",
                     Inputs(), kSteps, transports, kServers, kWorkers, checkpoints);
}

// How many connections the workers' logs tell of, by transport.
std::map<std::string, int> Connections(const std::string& checkpoints) {
  static const std::regex connected("server-[0-9]+: connected over ([a-z]+)");
  std::map<std::string, int> connections;
  for (int worker = 0; worker < kWorkers; ++worker) {
    std::ifstream log(fmt::format("{}/logs/worker-{}.log", checkpoints, worker));
    for (std::string line; std::getline(log, line);) {
      std::smatch match;
      if (std::regex_search(line, match, connected)) {
        ++connections[match[1]];
      }
    }
  }
  return connections;
}

struct Outcome {
  std::vector<float> state;
  std::map<std::string, int> connections;
};

Outcome TrainOver(const std::string& transports) {
  const std::string checkpoints = FreshDirectory("rdma-checkpoints");
  const TrainRun run = Train(Job(transports, checkpoints));
  EXPECT_EQ(run.program.exit_code, 0) << run.program.errors;
  return {FinalState(checkpoints), Connections(checkpoints)};
}

// What every run must end with.
const Outcome& Reference() {
  static const Outcome outcome = TrainOver("tcp");
  return outcome;
}

TEST(RdmaTraining, EndsWithTheSameBitsAsOverTcp) {
  const Outcome verbs = TrainOver("verbs");
  EXPECT_THAT(verbs.connections,
              ::testing::ElementsAre(::testing::Pair("verbs", kServers * kWorkers)));
  EXPECT_THAT(Reference().connections,
              ::testing::ElementsAre(::testing::Pair("tcp", kServers * kWorkers)));
  ASSERT_FALSE(verbs.state.empty());
  EXPECT_TRUE(verbs.state == Reference().state);
}

}  // namespace
}  // namespace shoal::testing
