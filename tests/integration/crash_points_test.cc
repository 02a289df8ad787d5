// A coordinator that is killed at every kind of moment and started again: servers, workers and the
// command go on with its next life where they are. The end has the bits of an undisturbed run, no
// committed step is done again, and the record has each step once.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/file.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/cluster_access.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr int64_t kSteps = 40;

class CoordinatorCrash : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new std::string(FreshDirectory("coordinator_crash"));
    ASSERT_NO_FATAL_FAILURE(MakeModel(*folder_));
    const std::string job = fmt::format(R"(
model: model
data: {{train: train.jsonl, template: chatml, max_sequence_tokens: 512, microbatch_tokens: 1024,
    oversize: skip}}
train: {{steps: {}, minibatch_samples: 16, compute: fp32, learning_rate: 3e-3, warmup_steps: 2,
    threads_per_worker: 1}}
service: {{partition_bytes: 16KiB, accumulate: exact}}
cluster: {{local: {{servers: 2, workers: 2}}, lease_seconds: 5}}
checkpoint: {{directory: alone, every_steps: 15, export_huggingface: false}}
)",
                                        kSteps);
    ASSERT_TRUE(WriteFileAtomically(*folder_ + "/job.yaml", job).ok());
    const ProgramResult alone = RunShoal({"train", *folder_ + "/job.yaml"});
    ASSERT_EQ(alone.exit_code, 0) << alone.errors;
    hash_ = new std::string(HashOf(*folder_ + "/alone"));
    recoveries_ = new std::vector<absl::Duration>;
  }
  static void TearDownTestSuite() {
    fs::remove_all(*folder_);
    if (!recoveries_->empty()) {
      std::ranges::sort(*recoveries_);
      fmt::print("recovery: median {:.2f} s, longest {:.2f} s, of {}\n",
                 absl::ToDoubleSeconds((*recoveries_)[recoveries_->size() / 2]),
                 absl::ToDoubleSeconds(recoveries_->back()), recoveries_->size());
    }
    delete recoveries_;
    delete folder_;
    delete hash_;
  }

  void SetUp() override {
    run_ = fmt::format("{}/{}", *folder_, SecureToken());
    fs::create_directories(run_ + "/other");
    Random random(static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
    access_ = MakeClusterAccess(run_, random);
    other_address_ = MakeClusterAccess(run_ + "/other", random).address;
    state_ = run_ + "/state.db";
  }
  void TearDown() override {
    train_.reset();
    members_.clear();
    coordinator_.reset();
    fs::remove_all(run_);
  }

  // `crash_at`: NAME:N, as crash_point.h has it.
  void StartCoordinator(const std::string& crash_at = "") {
    std::vector<std::string> command = {SHOAL_CRASHING_COORDINATOR,
                                        "--listen",
                                        access_.address,
                                        "--token-file",
                                        access_.token_file,
                                        "--state",
                                        state_,
                                        "--lease-seconds",
                                        "5"};
    if (stays_) {
      command.emplace_back("--stay");
    }
    coordinator_ = std::make_unique<Program>(
        command, std::map<std::string, std::string>{{"SHOAL_CRASH_AT", crash_at}});
  }
  void StartMember(const std::string& program) {
    std::vector<std::string> command = {BinDirectory() + "/" + program, "--coordinator",
                                        access_.address, "--token-file", access_.token_file};
    if (stays_) {
      command.emplace_back("--stay");
    }
    members_.push_back(std::make_unique<Program>(command));
  }
  void StartMembers() {
    AwaitMembers(access_, 0);
    for (int i = 0; i < 2; ++i) {
      StartMember("shoal-server");
      StartMember("shoal-worker");
    }
  }
  void StartTraining() {
    train_ = std::make_unique<Program>(std::vector<std::string>{
        BinDirectory() + "/shoal", "train", *folder_ + "/job.yaml", "--token-file",
        access_.token_file, "--json", "--set", "checkpoint.directory=" + run_ + "/c", "--set",
        fmt::format("cluster={{coordinator: \"{}\", servers: 2, workers: 2, lease_seconds: 5}}",
                    access_.address)});
  }
  size_t StepsSoFar() const { return ParseSteps(train_->OutputSoFar()).size(); }
  void AwaitStep(int64_t step) const {
    const absl::Time deadline = absl::Now() + kLimit;
    while (absl::Now() < deadline) {
      const std::vector<StepLine> steps = ParseSteps(train_->OutputSoFar());
      if (!steps.empty() && steps.back().step >= step) {
        return;
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    FAIL() << "no step " << step;
  }

  static void AwaitStopped(const Program& program) {
    const std::string stat = fmt::format("/proc/{}/stat", program.pid());
    const absl::Time deadline = absl::Now() + kLimit;
    while (absl::Now() < deadline) {
      std::string line;
      std::getline(std::ifstream(stat), line);
      if (line.find(") T ") != std::string::npos) {
        return;
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    FAIL() << "it does not stand still";
  }

  // The coordinator has come to its end, and another begins.
  void AwaitCrashAndStartAgain() {
    const ProgramResult ended = coordinator_->Wait(kLimit);
    ASSERT_EQ(ended.exit_code, 128 + SIGKILL) << ended.errors;
    const absl::Time crashed = absl::Now();
    const size_t steps = train_ == nullptr ? 0 : StepsSoFar();
    StartCoordinator();
    if (train_ == nullptr) {
      return;
    }
    while (StepsSoFar() == steps && train_->Running() && absl::Now() < crashed + kLimit) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    recoveries_->push_back(absl::Now() - crashed);
  }
  void ExpectTheEndOfAnUndisturbedRun() {
    const ProgramResult result = train_->Wait(kLimit);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    errors_ = result.errors;
    EXPECT_EQ(HashOf(run_ + "/c"), *hash_);
    int64_t printed = 0;
    for (const StepLine& step : ParseSteps(result.output)) {
      EXPECT_EQ(step.step, ++printed);
    }
    EXPECT_EQ(printed, kSteps);
    int64_t recorded = 0;
    int64_t number = 0;
    std::ifstream lines(run_ + "/c/record/metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("number")) {
        EXPECT_GT(json["number"].get<int64_t>(), number) << line;
        number = json["number"].get<int64_t>();
      }
      if (json["event"] == "step") {
        EXPECT_EQ(json["step"].get<int64_t>(), ++recorded) << line;
      }
      restarts_ += json["event"] == "coordinator_restarted" ? 1 : 0;
      joined_ += json["event"] == "joined" ? 1 : 0;
    }
    EXPECT_EQ(recorded, kSteps);
    for (const auto& member : members_) {
      if (stays_) {
        EXPECT_TRUE(member->Running());
      } else {
        EXPECT_EQ(member->Wait(kLimit).exit_code, 0);
      }
    }
  }
  // While the job runs or just after it.
  void CrashAt(const std::string& point) {
    SCOPED_TRACE(point);
    StartCoordinator(point);
    StartMembers();
    AwaitMembers(access_, 4);
    StartTraining();
    ASSERT_NO_FATAL_FAILURE(AwaitCrashAndStartAgain());
    ExpectTheEndOfAnUndisturbedRun();
  }
  void ExpectOneRestart() {
    EXPECT_EQ(restarts_, 1);
    EXPECT_THAT(errors_, ContainsRegex("coordinator restarted \\([0-9.]+ s\\)"));
  }

  static std::string* folder_;
  static std::string* hash_;
  static std::vector<absl::Duration>* recoveries_;
  bool stays_ = true;
  std::string run_;
  ClusterAccess access_;
  std::string other_address_;
  std::string state_;
  std::unique_ptr<Program> coordinator_;
  std::vector<std::unique_ptr<Program>> members_;
  std::unique_ptr<Program> train_;
  std::string errors_;
  // That the record tells of.
  int restarts_ = 0;
  int joined_ = 0;
};
std::string* CoordinatorCrash::folder_ = nullptr;
std::string* CoordinatorCrash::hash_ = nullptr;
std::vector<absl::Duration>* CoordinatorCrash::recoveries_ = nullptr;

TEST_F(CoordinatorCrash, Planning) {
  CrashAt("planned:12");
  ExpectOneRestart();
}

TEST_F(CoordinatorCrash, InAStep) {
  CrashAt("reported:21");
  ExpectOneRestart();
}

TEST_F(CoordinatorCrash, Sealing) {
  CrashAt("PrepareRequest:9");
  ExpectOneRestart();
}

TEST_F(CoordinatorCrash, BetweenRecordAndFirstCommit) {
  CrashAt("recorded:13");
  ExpectOneRestart();
}

TEST_F(CoordinatorCrash, BetweenCommits) {
  CrashAt("CommitRequest:14");
  ExpectOneRestart();
}

// The checkpoint under way is given up, and made again.
TEST_F(CoordinatorCrash, InACheckpoint) {
  CrashAt("checkpoint:2");
  ExpectOneRestart();
  EXPECT_TRUE(fs::exists(run_ + "/c/step-00000030") || fs::exists(run_ + "/c/step-00000031"));
}

TEST_F(CoordinatorCrash, AtTheEnd) { CrashAt("end:1"); }

TEST_F(CoordinatorCrash, WhoDoesNotStayGoesOnToo) {
  stays_ = false;
  CrashAt("recorded:13");
  ExpectOneRestart();
  EXPECT_EQ(coordinator_->Wait(kLimit).exit_code, 0);
}

TEST_F(CoordinatorCrash, WithoutAJob) {
  StartCoordinator();
  StartMembers();
  AwaitMembers(access_, 4);
  coordinator_->Signal(SIGKILL);
  AwaitCrashAndStartAgain();
  AwaitMembers(access_, 4);
  StartTraining();
  ExpectTheEndOfAnUndisturbedRun();
  EXPECT_EQ(restarts_, 0);
}

// In the place of a worker that was killed.
TEST_F(CoordinatorCrash, WhileOneJoins) {
  StartCoordinator("member:5");
  StartMembers();
  AwaitMembers(access_, 4);
  StartTraining();
  AwaitStep(5);
  members_.back()->Signal(SIGKILL);
  members_.back()->Wait(kLimit);
  members_.pop_back();
  StartMember("shoal-worker");
  AwaitCrashAndStartAgain();
  recoveries_->pop_back();  // the lease of the killed one is in it
  ExpectTheEndOfAnUndisturbedRun();
  ExpectOneRestart();
  EXPECT_EQ(joined_, 1);
}

TEST_F(CoordinatorCrash, WhileOneLeaves) {
  StartCoordinator("leaving:1");
  StartMembers();
  AwaitMembers(access_, 4);
  StartTraining();
  AwaitStep(5);
  members_.back()->Signal(SIGTERM);
  AwaitCrashAndStartAgain();
  EXPECT_EQ(members_.back()->Wait(kLimit).exit_code, 75);
  members_.pop_back();
  ExpectTheEndOfAnUndisturbedRun();
  ExpectOneRestart();
}

TEST_F(CoordinatorCrash, TwiceInARow) {
  StartCoordinator("recorded:5");
  StartMembers();
  AwaitMembers(access_, 4);
  StartTraining();
  const ProgramResult ended = coordinator_->Wait(kLimit);
  ASSERT_EQ(ended.exit_code, 128 + SIGKILL) << ended.errors;
  StartCoordinator("CommitRequest:1");
  AwaitCrashAndStartAgain();
  ExpectTheEndOfAnUndisturbedRun();
}

// A second coordinator begins from a copy of what the first recorded, and servers obey it; then the
// first goes on.
TEST_F(CoordinatorCrash, WhoHasASuccessorEndsWithoutAWordToItsFollowers) {
  StartCoordinator("reported:21:STOP");
  StartMembers();
  AwaitMembers(access_, 4);
  StartTraining();
  AwaitStopped(*coordinator_);
  for (const char* part : {"", "-wal"}) {
    fs::copy(state_ + part, run_ + "/copy.db" + part);
  }
  const std::unique_ptr<Program> first = std::move(coordinator_);
  const std::string address = access_.address;
  state_ = run_ + "/copy.db";
  access_.address = other_address_;
  StartCoordinator();
  AwaitState(access_, "training");
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait(kLimit);
  first->Signal(SIGCONT);
  const ProgramResult ended = first->Wait(kLimit);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.errors, HasSubstr("is of term 1 of the coordinator, and term 2 has begun"));
  access_.address = address;
  StartCoordinator();
  ExpectTheEndOfAnUndisturbedRun();
}

}  // namespace
}  // namespace shoal::testing
