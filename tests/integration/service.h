// A cluster that stays for each test, and the job that it runs: two servers, two workers and a
// coordinator, which tests end and start again.
#pragma once

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/cluster_access.h"
#include "tests/support/train_run.h"

namespace shoal::testing {

inline constexpr absl::Duration kLimit = absl::Seconds(60);

class Service : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new std::string(FreshDirectory("service"));
    ASSERT_NO_FATAL_FAILURE(MakeModel(*folder_));
    const std::string job = R"(
model: model
data: {train: train.jsonl, template: chatml, max_sequence_tokens: 512, microbatch_tokens: 1024,
    oversize: skip}
train: {steps: 12, minibatch_samples: 8, compute: fp32, learning_rate: 3e-3, warmup_steps: 2,
    threads_per_worker: 1}
service: {partition_bytes: 16KiB, accumulate: exact}
cluster: {local: {servers: 2, workers: 2}, lease_seconds: 2}
checkpoint: {directory: alone, every_steps: 3}
)";
    ASSERT_TRUE(WriteFileAtomically(*folder_ + "/job.yaml", job).ok());
    const ProgramResult alone = RunShoal({"train", *folder_ + "/job.yaml"});
    ASSERT_EQ(alone.exit_code, 0) << alone.errors;
    hash_ = new std::string(HashOf(*folder_ + "/alone"));
  }
  static void TearDownTestSuite() {
    std::filesystem::remove_all(*folder_);
    delete folder_;
    delete hash_;
  }

  void SetUp() override {
    run_ = fmt::format("{}/{}", *folder_, SecureToken());
    std::filesystem::create_directories(run_);
    Random random(static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
    access_ = MakeClusterAccess(run_, random);
    StartCoordinator();
    for (int i = 0; i < 2; ++i) {
      members_.push_back(StartMember("shoal-server"));
      members_.push_back(StartMember("shoal-worker"));
    }
    AwaitMembers(access_, 4);
  }
  void TearDown() override {
    members_.clear();
    coordinator_.reset();
    std::filesystem::remove_all(run_);
  }

  void StartCoordinator() {
    coordinator_ = std::make_unique<Program>(std::vector<std::string>{
        BinDirectory() + "/shoal-coordinator", "--stay", "--listen", access_.address,
        "--token-file", access_.token_file, "--state", run_ + "/state.db", "--lease-seconds", "2"});
  }
  std::unique_ptr<Program> StartMember(
      const std::string& program, const std::vector<std::string>& more = {},
      const std::map<std::string, std::string>& environment = {}) const {
    // One of tests has a path of its own.
    std::vector<std::string> command = {std::filesystem::path(BinDirectory()) / program,
                                        "--stay",
                                        "--coordinator",
                                        access_.address,
                                        "--token-file",
                                        access_.token_file};
    command.insert(command.end(), more.begin(), more.end());
    return std::make_unique<Program>(command, environment);
  }
  // So that something can happen in the middle of a job.
  void SlowDownWorkers() {
    for (const size_t worker : {1U, 3U}) {
      members_[worker]->Signal(SIGTERM);
      EXPECT_EQ(members_[worker]->Wait(kLimit).exit_code, 0) << "it is taken from no job";
      members_[worker] = StartMember("shoal-worker", {"--fault-seed", "1"});
    }
    AwaitMembers(access_, 4);
  }

  std::string DirectoryOf(const std::string& name) const { return run_ + "/" + name; }
  std::vector<std::string> TrainCommand(const std::string& name,
                                        const std::vector<std::string>& more) const {
    std::vector<std::string> command = {
        "train",
        *folder_ + "/job.yaml",
        "--token-file",
        access_.token_file,
        "--set",
        "checkpoint.directory=" + DirectoryOf(name),
        "--set",
        fmt::format("cluster={{coordinator: \"{}\", servers: 2, workers: 2, lease_seconds: 2}}",
                    access_.address)};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  ProgramResult Train(const std::string& name, const std::vector<std::string>& more) const {
    return RunShoal(TrainCommand(name, more));
  }
  // `shoal COMMAND`, beside the test.
  static std::unique_ptr<Program> Start(std::vector<std::string> command) {
    command.insert(command.begin(), BinDirectory() + "/shoal");
    return std::make_unique<Program>(command);
  }
  std::vector<std::string> AsksOf(const std::string& command, const std::string& id,
                                  const std::string& flag) const {
    return {command,           id, flag, "--coordinator", access_.address, "--token-file",
            access_.token_file};
  }
  // As `shoal jobs` has them.
  std::vector<nlohmann::json> Jobs() const {
    const ProgramResult asked = Ask(access_, {"jobs", "--json"});
    std::vector<nlohmann::json> jobs;
    std::istringstream lines(asked.output);
    for (std::string line; std::getline(lines, line);) {
      jobs.push_back(nlohmann::json::parse(line));
    }
    return jobs;
  }
  // Returns the job's id.
  std::string Submit(const std::string& name, std::vector<std::string> more = {}) const {
    more.emplace_back("--detach");
    const ProgramResult submitted = Train(name, more);
    EXPECT_EQ(submitted.exit_code, 0) << submitted.errors;
    EXPECT_THAT(submitted.output, ::testing::HasSubstr("job-"));
    std::string last;
    std::istringstream lines(submitted.output);
    for (std::string line; std::getline(lines, line);) {
      last = line;
    }
    return last;
  }
  nlohmann::json StateOf(const std::string& id) const {
    const std::vector<nlohmann::json> jobs = Jobs();
    const auto found =
        std::ranges::find_if(jobs, [&id](const auto& job) { return job["job_id"] == id; });
    return found == jobs.end() ? nlohmann::json() : *found;
  }
  static bool Await(const std::function<bool()>& is_so) {
    for (const absl::Time deadline = absl::Now() + kLimit; absl::Now() < deadline;) {
      if (is_so()) {
        return true;
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
  void AwaitStep(const std::string& id, int64_t step) const {
    EXPECT_TRUE(Await([&] { return StateOf(id)["step"].get<int64_t>() >= step; }))
        << id << " is not at step " << step;
  }
  void AwaitState(const std::string& id, const std::string& part) const {
    const absl::Time deadline = absl::Now() + kLimit;
    nlohmann::json job;
    do {
      absl::SleepFor(absl::Milliseconds(5));
      job = StateOf(id);
    } while (job["state"].get<std::string>().find(part) == std::string::npos &&
             !job["over"].get<bool>() && absl::Now() < deadline);
    EXPECT_THAT(job["state"].get<std::string>(), ::testing::HasSubstr(part));
  }
  // As the record has them, repeated ones too.
  std::vector<int64_t> StepsOf(const std::string& name) const {
    std::vector<int64_t> steps;
    std::ifstream record(DirectoryOf(name) + "/record/metrics.jsonl");
    for (std::string line; std::getline(record, line);) {
      const auto event = nlohmann::json::parse(line);
      if (event["event"] == "step") {
        steps.push_back(event["step"].get<int64_t>());
      }
    }
    return steps;
  }
  // Members send their lines when they renew their lease.
  bool AwaitInLog(const std::string& id, const std::string& line) const {
    return Await([&] { return Ask(access_, {"logs", id}).output.find(line) != std::string::npos; });
  }
  std::string AwaitEnd(const std::string& id) const {
    const absl::Time deadline = absl::Now() + kLimit;
    nlohmann::json job;
    do {
      absl::SleepFor(absl::Milliseconds(50));
      job = StateOf(id);
    } while (absl::Now() < deadline && (!job.contains("over") || !job["over"].get<bool>()));
    return job.contains("state") ? job["state"].get<std::string>() : "gone";
  }

  void EndTheCoordinator(int signal) {
    SlowDownWorkers();
    const std::string runs = Submit("runs");
    const std::string diverges = Submit("diverges", {"--set", "train.learning_rate=1e38"});
    const std::string stopped = Submit("stopped");
    const std::string waits = Submit("waits");
    EXPECT_EQ(Ask(access_, {"stop", stopped}).exit_code, 0);
    const auto follower = Start(AsksOf("attach", runs, "--json"));
    AwaitStep(runs, 4);
    EXPECT_TRUE(Await([&] { return !follower->OutputSoFar().empty(); }));
    coordinator_->Signal(signal);
    const ProgramResult ended = coordinator_->Wait(kLimit);
    EXPECT_EQ(ended.exit_code, signal == SIGKILL ? 128 + SIGKILL : 0) << ended.errors;
    StartCoordinator();
    EXPECT_EQ(AwaitEnd(runs), "done");
    EXPECT_EQ(AwaitEnd(diverges), "failed");
    EXPECT_EQ(AwaitEnd(waits), "done");
    EXPECT_FALSE(std::filesystem::exists(DirectoryOf("stopped") + "/huggingface"));
    // Told of the end that a stop is, or reads on over one that nobody announced.
    EXPECT_EQ(follower->Wait(kLimit).exit_code, signal == SIGKILL ? 0 : 75);
    EXPECT_EQ(HashOf(DirectoryOf("runs")), *hash_);
    EXPECT_EQ(HashOf(DirectoryOf("waits")), *hash_);
  }

  inline static std::string* folder_ = nullptr;
  inline static std::string* hash_ = nullptr;
  std::string run_;
  ClusterAccess access_;
  std::unique_ptr<Program> coordinator_;
  std::vector<std::unique_ptr<Program>> members_;
};

}  // namespace shoal::testing
