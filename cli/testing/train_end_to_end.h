// A job on a small synthetic set in a folder of the test's own, and the real `shoal train` on it.
#pragma once

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "core/base/file.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/checkpoint.h"
#include "tests/support/processes.h"
#include "tests/support/program.h"
#include "tests/support/train_run.h"

namespace shoal::cli {

namespace fs = std::filesystem;
using shoal::testing::BinDirectory;
using shoal::testing::ChildrenOf;
using shoal::testing::CommandOf;
using shoal::testing::FreshDirectory;
using shoal::testing::ParseSteps;
using shoal::testing::Program;
using shoal::testing::ProgramResult;
using shoal::testing::Runs;
using shoal::testing::StepLine;
using ::testing::HasSubstr;

inline constexpr absl::Duration kLimit =
    absl::Seconds(120);  // generous: machines may be slow, nothing may hang
inline constexpr absl::Duration kLease = absl::Seconds(10);

inline ProgramResult Shoal(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), BinDirectory() + "/shoal");
  Program program(arguments);
  return program.Wait(kLimit);
}

class TrainEndToEnd : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = FreshDirectory("train_end_to_end");
    ASSERT_NO_FATAL_FAILURE(shoal::testing::MakeModel(folder_));
    WriteJob(8, 4);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void WriteJob(int steps, int every_steps) const {
    const std::string job = fmt::format(R"(
model: model
data: {{train: train.jsonl, template: chatml, max_sequence_tokens: 512, microbatch_tokens: 1024,
    oversize: skip}}
train: {{steps: {}, minibatch_samples: 8, compute: fp32, learning_rate: 3e-3, warmup_steps: 2}}
service: {{partition_bytes: 64KiB}}
cluster: {{local: {{servers: 2, workers: 2}}, lease_seconds: {}}}
checkpoint: {{directory: checkpoints, every_steps: {}}}
)",
                                        steps, absl::ToDoubleSeconds(kLease), every_steps);
    ASSERT_TRUE(WriteFileAtomically(job_file(), job).ok());
  }
  std::string job_file() const { return folder_ + "/job.yaml"; }
  std::vector<std::string> TrainCommand(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command = {BinDirectory() + "/shoal", "train", job_file(), "--json"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  ProgramResult Train(const std::vector<std::string>& more = {}) const {
    Program program(TrainCommand(more));
    return program.Wait(kLimit);
  }

  std::string WriteToken() const {
    const std::string token = folder_ + "/token";
    EXPECT_TRUE(WriteFileAtomically(token, std::string(40, 'x')).ok());
    fs::permissions(token, fs::perms::owner_read | fs::perms::owner_write);
    return token;
  }
  // At a coordinator that runs already, or does not.
  std::vector<std::string> RemoteCommand(const std::string& coordinator,
                                         const std::string& name) const {
    const std::string job = folder_ + "/" + name + ".yaml";
    std::ofstream(job) << fmt::format(
        "model: model\ndata: {{train: train.jsonl, template: chatml, max_sequence_tokens: 512, "
        "microbatch_tokens: 1024, oversize: skip}}\ncluster: {{coordinator: '{}', servers: 1, "
        "workers: 1, start_timeout_seconds: 1}}\ncheckpoint: {{directory: {}}}\n",
        coordinator, name);
    return {BinDirectory() + "/shoal", "train", job, "--token-file", WriteToken()};
  }

  bool HasCheckpoint() const {
    std::error_code error;
    const fs::directory_iterator folders(folder_ + "/checkpoints", error);
    return std::any_of(begin(folders), end(folders), [](const fs::directory_entry& entry) {
      return fs::exists(entry.path() / "manifest.json");
    });
  }

  // Starts a long run and waits for a few steps and a checkpoint in the background.
  std::unique_ptr<Program> StartLongRun(const std::vector<std::string>& more = {}) const {
    WriteJob(100000, 2);
    auto program = std::make_unique<Program>(TrainCommand(more));
    const absl::Time deadline = absl::Now() + kLimit;
    while (ParseSteps(program->OutputSoFar()).size() < 3 || !HasCheckpoint()) {
      if (absl::Now() > deadline || !Runs(program->pid())) {
        ADD_FAILURE() << "no steps; " << program->OutputSoFar();
        break;
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    return program;
  }

  std::string token_file() const { return folder_ + "/checkpoints/logs/coordinator.token"; }
  // Needs only the job file, and a token that nobody else may read.
  void ExpectStatusOfRunningJob() const {
    const ProgramResult status = Shoal({"status", job_file(), "--json"});
    EXPECT_EQ(status.exit_code, 0) << status.errors;
    const auto members = nlohmann::json::parse(status.output, nullptr, false)["members"];
    EXPECT_EQ(members.size(), 4u);
    for (const auto& member : members) {  // its log has the name that status prints
      const std::string name =
          fmt::format("{}-{}", member["role"].get<std::string>(), member["index"].get<int>());
      const auto log = ReadFile(fmt::format("{}/checkpoints/logs/{}.log", folder_, name));
      EXPECT_THAT(log.value_or(""), HasSubstr(name + ": registered with the coordinator"));
      if (member["role"] == "worker") {
        EXPECT_EQ(member["connections"].at(0)["peer"], "server-0");
        EXPECT_EQ(member["connections"].at(0)["transport"], "shm");
      }
    }
    struct stat info {};
    EXPECT_EQ(stat(token_file().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
  }

  // Kills a process that runs `program_name` and checks how a run ends that is not to start it
  // again.
  void ExpectLossIsNamed(const std::string& program_name, const std::string& member,
                         std::vector<std::string> more = {}, size_t workers = 2) const {
    more.insert(more.end(), {"--set", "queue.max_restarts=0"});
    const std::unique_ptr<Program> run = StartLongRun(more);
    const std::set<pid_t> children = ChildrenOf(run->pid());
    EXPECT_EQ(children.size(), 3 + workers) << "a coordinator, two servers, workers";
    const auto victim = std::find_if(children.begin(), children.end(), [&](pid_t pid) {
      return CommandOf(pid).ends_with("/" + program_name);
    });
    ASSERT_NE(victim, children.end());
    const absl::Time killed = absl::Now();
    ASSERT_EQ(kill(*victim, SIGKILL), 0);
    const ProgramResult result = run->Wait(kLimit);
    EXPECT_LT(absl::Now() - killed, kLease + absl::Seconds(5));
    EXPECT_EQ(result.exit_code, 1) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(member));
    EXPECT_THAT(result.errors, HasSubstr("SIGKILL"));
    EXPECT_THAT(result.errors, HasSubstr("--resume")) << "says how to go on";
    if (program_name == "shoal-worker") {  // servers hold all weights of the last step
      const auto newest = server::NewestCheckpoint(folder_ + "/checkpoints");
      EXPECT_GE((*newest)->step, ParseSteps(result.output).back().step);
    }
    for (const pid_t pid : children) {
      EXPECT_FALSE(Runs(pid)) << CommandOf(pid);
    }
  }

  std::string folder_;
};

}  // namespace shoal::cli
