// A local `shoal train` whose processes are killed: it starts them again, and the run ends with the
// bits of an undisturbed one.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/processes.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kSteps = 60;
constexpr absl::Duration kLimit = absl::Seconds(60);

class LocalRestart : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new std::string(FreshDirectory("local_restart"));
    ASSERT_NO_FATAL_FAILURE(MakeModel(*folder_));
    const std::string job = fmt::format(R"(
model: model
data: {{train: train.jsonl, template: chatml, max_sequence_tokens: 512, microbatch_tokens: 1024,
    oversize: skip}}
train: {{steps: {}, minibatch_samples: 24, compute: fp32, learning_rate: 3e-3, warmup_steps: 2,
    threads_per_worker: 1, groups: [{{match: "*norm*", freeze: true}},
    {{match: "*embed*", learning_rate_scale: 0.5, weight_decay: 0.2}}]}}
service: {{partition_bytes: 4KiB, accumulate: exact}}
cluster: {{local: {{servers: 2, workers: 2}}, lease_seconds: 2}}
checkpoint: {{directory: undisturbed, every_steps: 10, export_huggingface: false}}
)",
                                        kSteps);
    ASSERT_TRUE(WriteFileAtomically(*folder_ + "/job.yaml", job).ok());
    const ProgramResult alone = RunShoal({"train", *folder_ + "/job.yaml"});
    ASSERT_EQ(alone.exit_code, 0) << alone.errors;
    hash_ = new std::string(HashOf(*folder_ + "/undisturbed"));
  }
  static void TearDownTestSuite() {
    fs::remove_all(*folder_);
    delete folder_;
    delete hash_;
  }

  void SetUp() override { directory_ = fmt::format("{}/{}", *folder_, SecureToken()); }
  void TearDown() override { run_.reset(); }

  void Start(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {
        BinDirectory() + "/shoal",           "train", *folder_ + "/job.yaml", "--json", "--set",
        "checkpoint.directory=" + directory_};
    command.insert(command.end(), more.begin(), more.end());
    run_ = std::make_unique<Program>(command);
  }
  // Of those after the last one that was killed.
  void AwaitStep(int64_t step) {
    const absl::Time deadline = absl::Now() + kLimit;
    while (true) {
      const std::vector<StepLine> steps = ParseSteps(run_->OutputSoFar());
      const auto later = steps.begin() + std::min(seen_, std::ssize(steps));
      if (std::any_of(later, steps.end(), [&](const StepLine& one) { return one.step >= step; })) {
        return;
      }
      ASSERT_TRUE(absl::Now() < deadline && run_->Running())
          << "no step " << step << " in\n"
          << run_->OutputSoFar() << run_->Wait(absl::ZeroDuration()).errors;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  void AwaitLoss() {
    const absl::Time deadline = absl::Now() + kLimit;
    const auto told = [&] {
      const auto record = ReadFile(directory_ + "/record/metrics.jsonl");
      return record.ok() && absl::StrContains(*record, R"("event":"lost")");
    };
    while (!told()) {
      ASSERT_TRUE(absl::Now() < deadline && run_->Running());
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  // Its number.
  pid_t Kill(const std::string& program, int signal = SIGKILL) {
    for (const pid_t pid : ChildrenOf(run_->pid())) {
      if (CommandOf(pid).ends_with(program)) {
        seen_ = std::ssize(ParseSteps(run_->OutputSoFar()));
        EXPECT_EQ(kill(pid, signal), 0);
        return pid;
      }
    }
    ADD_FAILURE() << "no " << program;
    return 0;
  }
  ProgramResult End() {
    const std::set<pid_t> children = ChildrenOf(run_->pid());
    const ProgramResult result = run_->Wait(kLimit);
    for (const pid_t pid : children) {
      EXPECT_FALSE(Runs(pid)) << CommandOf(pid);
    }
    return result;
  }
  void ExpectTheSameEnd() {
    const ProgramResult result = End();
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(HashOf(directory_), *hash_);
    errors_ = result.errors;
  }

  // Of that name in the run's record.
  std::vector<nlohmann::json> Events(const std::string& name) {
    std::vector<nlohmann::json> events;
    std::istringstream record(*ReadFile(directory_ + "/record/metrics.jsonl"));
    for (std::string line; std::getline(record, line);) {
      if (nlohmann::json event = nlohmann::json::parse(line); event["event"] == name) {
        events.push_back(std::move(event));
      }
    }
    return events;
  }
  // How many packs of that worker went to others.
  int64_t HandedOverBy(pid_t worker) {
    int64_t packs = 0;
    for (const nlohmann::json& event : Events("handed_over")) {
      const std::string member = event["member"];
      packs +=
          absl::StrContains(member, fmt::format("pid {})", worker)) ? int64_t{event["packs"]} : 0;
    }
    return packs;
  }

  static std::string* folder_;
  static std::string* hash_;
  std::string directory_;
  std::unique_ptr<Program> run_;
  std::ptrdiff_t seen_ = 0;  // steps before the last one was killed
  std::string errors_;
};
std::string* LocalRestart::folder_ = nullptr;
std::string* LocalRestart::hash_ = nullptr;

class LocalRestartOver : public LocalRestart, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Transports, LocalRestartOver, ::testing::Values("shm", "tcp"));

// 2, 8 and then 3 servers: the bits of 2, as few bytes as can be, and nothing given up. Validations
// are none of the bits' business.
TEST_P(LocalRestartOver, ServersThatAreAddedAndTakenAwayCostNoBit) {
  Start({"--set", fmt::format("service.transports=[{}]", GetParam()), "--set",
         "data.validation.path=" + *folder_ + "/train.jsonl", "--set",
         "data.validation.every_steps=1", "--set", "data.validation.limit=8"});
  AwaitStep(5);
  size_t waves = 0;
  for (const int servers : {8, 3}) {
    const ProgramResult scaled =
        RunShoal({"scale", "--run", directory_, "--servers", std::to_string(servers), "--rate",
                  "100GB/s", "--wait", "--json"});
    ASSERT_EQ(scaled.exit_code, 0) << scaled.errors;
    const nlohmann::json told = nlohmann::json::parse(scaled.output);
    EXPECT_EQ(told["servers"], servers);
    EXPECT_EQ(told["rollbacks"], 0);
    EXPECT_LE(told["imbalance"], 1.0);
    EXPECT_LE(told["bytes_moved"].get<double>(), 1.05 * told["least_bytes"].get<double>());
    EXPECT_EQ(told["bytes_left"], 0);
    EXPECT_LE(told["waves"].size(), 16U);
    waves += told["waves"].size();
  }
  EXPECT_GT(waves, 2U) << "no step ran between";
  // Where servers are the same, workers keep all but their ties to them.
  const std::string logs = RunShoal({"logs", "--run", directory_}).output;
  const std::vector<std::string> parts = absl::StrSplit(logs, "worker-0 takes part in ");
  EXPECT_THAT(parts, SizeIs(AllOf(Ge(2U), Le(waves + 1)))) << logs;
  EXPECT_THAT(logs,
              ::testing::ContainsRegex(fmt::format("reads state of [^ ]+ over {}", GetParam())));
  ASSERT_TRUE(run_->Running()) << "the run was over before the servers were scaled";
  ExpectTheSameEnd();
  EXPECT_THAT(Events("moved"), SizeIs(waves));
  EXPECT_THAT(Events("attempt_dropped"), IsEmpty());
}

// Each committed step is told once, and none begins at a checkpoint.
TEST_F(LocalRestart, AKilledServerOfAJobWithReplicasCostsNoStep) {
  Start({"--set", "cluster.local.servers=3", "--set", "service.replicas=2"});
  for (const int64_t step : {5, 17, 31}) {
    AwaitStep(step);
    Kill("/shoal-server");
  }
  ExpectTheSameEnd();
  EXPECT_THAT(Events("lost"), SizeIs(3));
  EXPECT_THAT(Events("resume"), IsEmpty());
  const std::vector<nlohmann::json> steps = Events("step");
  ASSERT_THAT(steps, SizeIs(kSteps));
  for (int64_t step = 1; step <= kSteps; ++step) {
    EXPECT_EQ(steps[static_cast<size_t>(step - 1)]["step"], step);
  }
}

TEST_F(LocalRestart, AKilledServerThatWasReadFromAsABackupCostsNoBit) {
  Start({"--set", "cluster.local.servers=3", "--set", "service.replicas=2", "--set",
         "service.read_replicas=true"});
  AwaitStep(5);
  Kill("/shoal-server");
  ExpectTheSameEnd();
  EXPECT_THAT(Events("lost"), SizeIs(1));
  EXPECT_THAT(Events("resume"), IsEmpty());
  EXPECT_THAT(Events("step"), SizeIs(kSteps));
}

TEST_F(LocalRestart, AKilledServerWorkerAndCoordinatorCostNoBit) {
  Start();
  AwaitStep(12);
  Kill("/shoal-server");
  AwaitStep(24);
  Kill("/shoal-worker");
  AwaitStep(36);
  Kill("/shoal-coordinator");
  ExpectTheSameEnd();
  for (const char* name : {"server-", "worker-", "coordinator"}) {
    EXPECT_THAT(errors_,
                ::testing::ContainsRegex(fmt::format(
                    "{}.*was killed by SIGKILL .*: started again \\(1 of 3 in 10m\\)", name)));
  }
}

// One in the middle of a step is killed, one is told to leave, and each is replaced.
TEST_F(LocalRestart, WorkersComeAndGoWithoutADroppedAttempt) {
  for (const char* assignment : {"dynamic", "lb-mini"}) {
    SetUp();  // another directory
    Start({"--set", "cluster.local.workers=3", "--set",
           std::string("plan.assignment=") + assignment});
    seen_ = 0;
    AwaitStep(5);
    const pid_t killed = Kill("/shoal-worker");
    AwaitStep(5);
    const pid_t told = Kill("/shoal-worker", SIGTERM);
    ExpectTheSameEnd();
    EXPECT_THAT(Events("attempt_dropped"), IsEmpty());
    EXPECT_THAT(Events("resume"), IsEmpty());
    EXPECT_THAT(Events("joined"), Not(IsEmpty()));
    if (assignment == std::string("dynamic")) {
      // Two packs at most are done again: the one that it ran, and one that it had just run.
      // Whoever is told to leave ends what it has begun, and hands back what it has drawn ahead.
      EXPECT_LE(HandedOverBy(killed), 2);
      EXPECT_LE(HandedOverBy(told), 1);
    }
  }
}

TEST_F(LocalRestart, BeforeTheFirstCheckpointTheJobStartsFromTheModelAgain) {
  Start({"--set", "checkpoint.every_steps=0"});
  AwaitStep(3);
  Kill("/shoal-server");
  AwaitStep(1);
  ExpectTheSameEnd();
  EXPECT_THAT(errors_, HasSubstr("or without one from the model"));
}

TEST_F(LocalRestart, WithoutACheckpointAKilledCoordinatorCostsNoStep) {
  Start({"--set", "checkpoint.every_steps=0"});
  for (const int64_t step : {3, 20}) {
    AwaitStep(step);
    Kill("/shoal-coordinator");
    AwaitStep(step + 1);
  }
  const std::vector<StepLine> steps = ParseSteps(run_->OutputSoFar());
  ExpectTheSameEnd();
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].step, static_cast<int64_t>(i + 1));
  }
  EXPECT_THAT(errors_, HasSubstr("the job goes on where it is"));
  EXPECT_THAT(errors_, ::testing::ContainsRegex("coordinator restarted \\([0-9.]+ s\\)"));
}

// The other group does what its group had in hand, and nobody else begins anew.
TEST_F(LocalRestart, StagesOfPipelinesComeAndGoWithoutADroppedAttempt) {
  Start({"--set", "cluster.local.workers=4", "--set", "cluster.pipeline.stages=2"});
  AwaitStep(12);
  Kill("/shoal-worker");
  AwaitStep(12);
  Kill("/shoal-worker", SIGTERM);
  ExpectTheSameEnd();
  EXPECT_THAT(Events("attempt_dropped"), IsEmpty());
  EXPECT_THAT(Events("resume"), IsEmpty());
  EXPECT_THAT(Events("joined"), SizeIs(2));
  // Done again is what one group had in hand (how much: LossOfAStageTest), for each that goes.
  const std::vector<nlohmann::json> handed_over = Events("handed_over");
  EXPECT_THAT(handed_over, SizeIs(Le(2)));
  for (const nlohmann::json& event : handed_over) {
    EXPECT_THAT(event["member"], AnyOf("group 0", "group 1"));
  }
  // With 0 if it waits for the other stages of a group just then.
  EXPECT_THAT(errors_, ::testing::ContainsRegex("exited with status (75|0): started again"));
}

TEST_F(LocalRestart, WithOneGroupAKilledStageCostsNoStep) {
  Start({"--set", "cluster.pipeline.stages=2"});
  AwaitStep(12);
  Kill("/shoal-worker");
  ExpectTheSameEnd();
  EXPECT_EQ(std::ssize(ParseSteps(run_->OutputSoFar())), kSteps) << "each once";
  EXPECT_THAT(Events("resume"), IsEmpty());
}

// The others wait for it at a layer, and go on without it.
TEST_F(LocalRestart, AKilledWorkerAtLayersCostsAnAttemptAtMost) {
  const std::vector<std::string> options = {"--set", "cluster.local.workers=3", "--set",
                                            "train.synchronization=layer"};
  Start(options);
  EXPECT_EQ(End().exit_code, 0);
  const std::string undisturbed = HashOf(directory_);  // of other packs than those of steps
  SetUp();
  Start(options);
  AwaitStep(12);
  Kill("/shoal-worker");
  EXPECT_EQ(End().exit_code, 0);
  EXPECT_EQ(HashOf(directory_), undisturbed);
  EXPECT_EQ(std::ssize(ParseSteps(run_->OutputSoFar())), kSteps) << "each once";
  EXPECT_THAT(Events("attempt_dropped"), SizeIs(Le(1)));
  EXPECT_THAT(Events("resume"), IsEmpty());
  EXPECT_THAT(Events("joined"), SizeIs(1));
}

TEST_F(LocalRestart, WhoIsToldToLeaveIsReplacedAndCostsNoStep) {
  for (const auto& [program, status] : {std::pair{"/shoal-worker", 75}, {"/shoal-server", 0}}) {
    Start({"--overwrite"});
    seen_ = 0;
    AwaitStep(5);
    Kill(program, SIGTERM);
    ExpectTheSameEnd();
    EXPECT_THAT(errors_, HasSubstr(fmt::format("exited with status {}: started again", status)));
    EXPECT_EQ(std::ssize(ParseSteps(run_->OutputSoFar())), kSteps) << "each once";
  }
}

// A pack takes seconds, and it has no time for that.
TEST_F(LocalRestart, WhoIsToldToLeaveAndTakesTooLongLeavesItsPackToOthers) {
  Start({"--set", "emulate.shape=tiny", "--set", "emulate.device_flops=3e7", "--set",
         "train.minibatch_samples=2", "--set", "train.steps=3", "--set", "checkpoint.every_steps=0",
         "--set", "cluster.grace_seconds=0"});
  AwaitStep(1);
  const pid_t told = Kill("/shoal-worker", SIGTERM);
  const ProgramResult result = End();
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("exited with status 75: started again"));
  EXPECT_EQ(std::ssize(ParseSteps(result.output)), 3) << "each once";
  EXPECT_THAT(Events("attempt_dropped"), IsEmpty());
  EXPECT_EQ(HandedOverBy(told), 1);
}

TEST_F(LocalRestart, ItsLogsAreReadAsOne) {
  Start({"--keep-logs"});
  AwaitStep(1);
  const ProgramResult during = RunShoal({"logs", "--run", directory_, "--follow"});
  ExpectTheSameEnd();
  const ProgramResult after = RunShoal({"logs", "--run", directory_, "--json"});
  for (const ProgramResult* logs : {&during, &after}) {
    EXPECT_EQ(logs->exit_code, 0) << logs->errors;
    for (const char* process : {"coordinator", "server-0", "server-1", "worker-0", "worker-1"}) {
      EXPECT_THAT(logs->output, HasSubstr(process));
    }
  }
  EXPECT_THAT(during.output, HasSubstr(fmt::format("is done at step {}", kSteps)));
}

TEST_F(LocalRestart, AWorkerThatHungTakesPartAgainOnceItGoesOn) {
  Start();
  AwaitStep(12);
  Kill("/shoal-worker", SIGSTOP);
  AwaitLoss();
  Kill("/shoal-worker", SIGCONT);
  ExpectTheSameEnd();
}

TEST_F(LocalRestart, ASignalWhileAProcessComesBackLeavesACheckpoint) {
  Start();
  AwaitStep(12);
  Kill("/shoal-coordinator");
  absl::SleepFor(absl::Milliseconds(60));  // about when it is started again
  run_->Signal(SIGTERM);
  const ProgramResult result = End();
  EXPECT_THAT(result.exit_code, AnyOf(75, 1)) << result.errors;
  EXPECT_FALSE(result.timed_out);
  const ProgramResult rest = RunShoal(
      {"train", *folder_ + "/job.yaml", "--resume", "--set", "checkpoint.directory=" + directory_});
  EXPECT_EQ(rest.exit_code, 0) << rest.errors;
  EXPECT_EQ(HashOf(directory_), *hash_);
}

TEST_F(LocalRestart, WhoDiesTooOftenEndsTheRunByName) {
  Start({"--set", "train.steps=100000", "--set", "cluster.local.servers=1", "--set",
         "checkpoint.every_steps=1"});
  for (int restarts = 0; restarts < 4; ++restarts) {
    AwaitStep(10);  // with a checkpoint of one before
    Kill("/shoal-server");
    absl::SleepFor(absl::Milliseconds(200));  // else it may be killed before it is started again
  }
  const ProgramResult result = End();
  EXPECT_EQ(result.exit_code, 1) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("after it was started again 3 times in 10m"));
  EXPECT_THAT(result.errors, HasSubstr("--resume"));
}

}  // namespace
}  // namespace shoal::testing
