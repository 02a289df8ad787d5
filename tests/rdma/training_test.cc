// Training over verbs, by the real programs: two servers and two workers end with the same bits as
// over tcp, also when queue pairs break, links go down and processes are killed on the way.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>

#include "absl/time/clock.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/final_state.h"
#include "tests/support/program.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Pair;

constexpr int kServers = 2;
constexpr int kWorkers = 2;
constexpr int kSteps = 6;
constexpr int kStepsOfMoves = 40;
constexpr int kVocabulary = 512;  // of the small models below
constexpr absl::Duration kLimit = absl::Minutes(3);

// An emulated processor does some ten million operations on floats per second.
constexpr std::string_view kTinyModel = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512,
  "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": false, "mlp_bias": false,
  "tie_word_embeddings": true})";

void WriteSamples(const std::string& path) {
  Random random(7, 1);
  std::ofstream file(path);
  for (int sample = 0; sample < 40; ++sample) {
    std::vector<uint64_t> ids(8);
    for (uint64_t& id : ids) {
      id = random.Below(kVocabulary);
    }
    file << nlohmann::json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
  }
}

// Model and data, made once.
const std::string& Inputs() {
  static const std::string folder = [] {
    const std::string made = FreshDirectory("rdma-inputs");
    WriteSamples(made + "/train.jsonl");
    EXPECT_TRUE(WriteFileAtomically(made + "/config.json", std::string(kTinyModel)).ok());
    Program program({BinDirectory() + "/shoal", "model", "init", "--shape", made + "/config.json",
                     "--output", made + "/model"});
    const ProgramResult result = program.Wait(kLimit);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return made;
  }();
  return folder;
}

struct JobOptions {
  std::string model = Inputs() + "/model";
  std::string transports = "verbs";
  std::string checkpoints = FreshDirectory("rdma-checkpoints");
  int steps = kSteps;
};

std::string Job(const JobOptions& options) {
  return fmt::format(R"(
model: {0}
data: {{train: {1}/train.jsonl, max_sequence_tokens: 16, microbatch_tokens: 16}}
train: {{steps: {2}, minibatch_samples: 4, compute: fp32, learning_rate: 1e-3, warmup_steps: 2,
    push: microbatch}}
service: {{accumulate: exact, partition_bytes: 8KiB, transports: [{3}]}}
cluster: {{local: {{servers: {4}, workers: {5}}}}}
checkpoint: {{directory: {6}, every_steps: 1, keep: 100, export_huggingface: false}}
)",
                     options.model, Inputs(), options.steps, options.transports, kServers, kWorkers,
                     options.checkpoints);
}

// What matches the expression's first group in the logs of the workers, counted.
std::map<std::string, int> CountInWorkerLogs(const std::string& checkpoints,
                                             const std::string& expression) {
  const std::regex pattern(expression);
  std::map<std::string, int> found;
  for (int worker = 0; worker < kWorkers; ++worker) {
    std::ifstream log(fmt::format("{}/logs/worker-{}.log", checkpoints, worker));
    for (std::string line; std::getline(log, line);) {
      std::smatch match;
      if (std::regex_search(line, match, pattern)) {
        ++found[match[1]];
      }
    }
  }
  return found;
}

// The virtual machine's files go with it, so a failure shows what there is to see.
std::string Logs(const std::string& checkpoints) {
  std::string text;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints + "/logs")) {
    if (entry.path().extension() == ".log") {
      text += ReadFile(entry.path()).value_or("");
    }
  }
  return text;
}

// How many connections were made, by transport.
std::map<std::string, int> Connections(const std::string& checkpoints) {
  return CountInWorkerLogs(checkpoints, "server-[0-9]+: connected over ([a-z]+)");
}

TrainRun TrainWith(const JobOptions& options, std::vector<std::string> arguments = {},
                   const std::map<std::string, std::string>& environment = {}) {
  arguments.push_back("--keep-logs");
  return Train(Job(options), arguments, kLimit, environment);
}

std::vector<float> Undisturbed(const JobOptions& options) {
  const TrainRun run = TrainWith(options);
  EXPECT_EQ(run.program.exit_code, 0) << run.program.errors;
  EXPECT_THAT(Connections(options.checkpoints),
              ElementsAre(Pair(options.transports, kServers * kWorkers)));
  return FinalState(options.checkpoints);
}

// What every run of the tiny model must end with.
const std::vector<float>& Expected() {
  static const std::vector<float> state = Undisturbed({.transports = "tcp"});
  return state;
}

TEST(RdmaTraining, EndsWithTheSameBitsAsOverTcp) {
  const std::vector<float> state = Undisturbed({});
  ASSERT_FALSE(state.empty());
  EXPECT_TRUE(state == Expected());
}

TEST(RdmaTraining, TheSmallModelEndsWithTheSameBitsAsOverTcp) {
  if (TestData().empty()) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  const std::string model = TestData() + "/stories260k";
  const std::vector<float> state = Undisturbed({.model = model, .steps = 2});
  ASSERT_FALSE(state.empty());
  EXPECT_TRUE(state == Undisturbed({.model = model, .transports = "tcp", .steps = 2}));
}

// Moves take and leave servers, whose state goes over verbs as weights and gradients do.
TEST(RdmaTraining, ServersThatComeAndGoCostNoBit) {
  const JobOptions still = {.transports = "tcp", .steps = kStepsOfMoves};
  const JobOptions options = {.steps = kStepsOfMoves};
  const std::string job = FreshDirectory("rdma-job") + "/job.yaml";
  ASSERT_TRUE(WriteFileAtomically(job, Job(options)).ok());
  Program train({BinDirectory() + "/shoal", "train", job, "--json", "--keep-logs"});
  const absl::Time deadline = absl::Now() + kLimit;
  while (ParseSteps(train.OutputSoFar()).empty()) {
    ASSERT_TRUE(absl::Now() < deadline && train.Running()) << train.OutputSoFar();
    absl::SleepFor(absl::Milliseconds(20));
  }
  for (const int servers : {4, 3}) {
    Program scale({BinDirectory() + "/shoal", "scale", "--run", options.checkpoints, "--servers",
                   std::to_string(servers), "--rate", "100GB/s", "--wait", "--json"});
    const ProgramResult scaled = scale.Wait(kLimit);
    ASSERT_EQ(scaled.exit_code, 0) << scaled.errors << Logs(options.checkpoints);
    const nlohmann::json told = nlohmann::json::parse(scaled.output);
    EXPECT_EQ(told["servers"], servers);
    EXPECT_EQ(told["rollbacks"], 0);
    EXPECT_LE(told["imbalance"], 1.0);
  }
  ASSERT_TRUE(train.Running()) << "the run was over before the servers were scaled";
  const ProgramResult result = train.Wait(kLimit);
  ASSERT_EQ(result.exit_code, 0) << result.errors << Logs(options.checkpoints);
  EXPECT_THAT(Logs(options.checkpoints), ContainsRegex("reads state of [^ ]+ over verbs"));
  EXPECT_TRUE(FinalState(options.checkpoints) == Undisturbed(still)) << Logs(options.checkpoints);
}

// A fault in the midst of a program's transfers; see fault_injection.cc.
std::map<std::string, std::string> Fault(const std::string& program, int posts,
                                         const std::string& what) {
  const std::string once = FreshDirectory("rdma-fault") + "/once";
  EXPECT_TRUE(WriteFileAtomically(once, "").ok());
  return {{"LD_PRELOAD", SHOAL_FAULT_INJECTION},
          {"SHOAL_TEST_FAULT_PROGRAM", program},
          {"SHOAL_TEST_FAULT_POSTS", std::to_string(posts)},
          {"SHOAL_TEST_FAULT_ONCE", once},
          {"SHOAL_TEST_FAULT_DO", what}};
}

bool Happened(const std::map<std::string, std::string>& fault) {
  return !std::filesystem::exists(fault.at("SHOAL_TEST_FAULT_ONCE"));
}

std::vector<std::string> ShoalProcesses() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    if (std::getline(file, name) && name.starts_with("shoal")) {
      names.push_back(name);
    }
  }
  return names;
}

class RdmaTrainingFault : public ::testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { EXPECT_THAT(ShoalProcesses(), ElementsAre()); }
};

TEST_P(RdmaTrainingFault, ABrokenQueuePairIsReplacedAndNothingIsLost) {
  const JobOptions options;
  // Early enough for transfers to follow on a slow machine too, where few posts carry many.
  const auto fault = Fault(GetParam(), 40, "break");
  const TrainRun run = TrainWith(options, {}, fault);
  ASSERT_EQ(run.program.exit_code, 0) << Logs(options.checkpoints);
  EXPECT_TRUE(Happened(fault));
  EXPECT_THAT(Connections(options.checkpoints),
              ElementsAre(Pair("verbs", Ge(kServers * kWorkers + 1))));
  EXPECT_TRUE(FinalState(options.checkpoints) == Expected()) << Logs(options.checkpoints);
}

TEST_P(RdmaTrainingFault, AProcessKilledMidTransferIsNamedAndTheRunResumes) {
  const JobOptions options;
  const auto fault = Fault(GetParam(), 90, "kill -KILL $PPID");
  const TrainRun run = TrainWith(options, {"--set", "queue.max_restarts=0"}, fault);
  EXPECT_EQ(run.program.exit_code, 1);
  EXPECT_TRUE(Happened(fault));
  EXPECT_THAT(run.program.errors, HasSubstr("SIGKILL"));
  EXPECT_THAT(ShoalProcesses(), ElementsAre());
  const TrainRun rest = TrainWith(options, {"--resume"});
  ASSERT_EQ(rest.program.exit_code, 0) << rest.program.errors;
  EXPECT_LT(rest.steps.size(), static_cast<size_t>(kSteps)) << "it did not begin anew";
  EXPECT_TRUE(FinalState(options.checkpoints) == Expected()) << Logs(options.checkpoints);
}

INSTANTIATE_TEST_SUITE_P(Programs, RdmaTrainingFault,
                         ::testing::Values("shoal-worker", "shoal-server"), [](const auto& info) {
                           return std::string(info.param).substr(sizeof "shoal-" - 1);
                         });

// The network devices that carry RDMA, or none if one of them is more than a dummy: nobody's real
// link is taken down.
std::vector<std::string> DummyLinks() {
  std::vector<std::string> links;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband")) {
    std::ifstream file(device.path() / "ports/1/gid_attrs/ndevs/0");
    std::string name;
    if (!std::getline(file, name) || !name.starts_with("dummy")) {
      return {};
    }
    links.push_back(name);
  }
  return links;
}

TEST(RdmaTrainingLink, DownAndUpAgainChangesNothing) {
  std::string down, up;
  for (const std::string& link : DummyLinks()) {
    down += fmt::format("ip link set {} down; ", link);
    up += fmt::format("ip link set {} up; ", link);
  }
  if (down.empty()) {
    GTEST_SKIP() << "there are RDMA devices on real links";
  }
  const JobOptions options = {.transports = "verbs, tcp"};
  const auto fault = Fault("shoal-worker", 100, down + "(sleep 3; " + up + ") &");
  const TrainRun run = TrainWith(options, {}, fault);
  (void)!std::system(up.c_str());
  ASSERT_EQ(run.program.exit_code, 0) << Logs(options.checkpoints);
  EXPECT_TRUE(Happened(fault));
  EXPECT_THAT(Connections(options.checkpoints), Contains(Key("verbs")));
  EXPECT_TRUE(FinalState(options.checkpoints) == Expected()) << Logs(options.checkpoints);
  EXPECT_THAT(ShoalProcesses(), ElementsAre());
}

}  // namespace
}  // namespace shoal::testing
