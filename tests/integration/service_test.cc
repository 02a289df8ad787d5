// A cluster that stays: job after job on the same processes, queued, stopped, failed, with the
// coordinator killed in between; each job has the bits that it has alone.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/file.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/process_memory.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(60);

ProgramResult RunShoal(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), BinDirectory() + "/shoal");
  return Program(arguments).Wait(kLimit);
}

std::string HashOf(const std::string& directory) {
  return RunShoal({"checkpoint", "hash", directory}).output;
}

class Service : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new std::string(FreshDirectory("service"));
    ASSERT_NO_FATAL_FAILURE(MakeTinyModel(*folder_));
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
    fs::remove_all(*folder_);
    delete folder_;
    delete hash_;
  }

  void SetUp() override {
    run_ = fmt::format("{}/{}", *folder_, SecureToken());
    fs::create_directories(run_);
    Random random(static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
    address_ = fmt::format("127.0.0.1:{}", 20000 + random.Below(20000));
    token_ = run_ + "/token";
    std::ofstream(token_) << SecureToken();
    fs::permissions(token_, fs::perms::owner_read | fs::perms::owner_write);
    StartCoordinator();
    for (int i = 0; i < 2; ++i) {
      members_.push_back(StartMember("shoal-server"));
      members_.push_back(StartMember("shoal-worker"));
    }
    AwaitMembers(4);
  }
  void TearDown() override {
    members_.clear();
    coordinator_.reset();
    fs::remove_all(run_);
  }

  void StartCoordinator() {
    coordinator_ = std::make_unique<Program>(std::vector<std::string>{
        BinDirectory() + "/shoal-coordinator", "--stay", "--listen", address_, "--token-file",
        token_, "--state", run_ + "/state.db", "--lease-seconds", "2"});
  }
  std::unique_ptr<Program> StartMember(const std::string& program) {
    return std::make_unique<Program>(std::vector<std::string>{BinDirectory() + "/" + program,
                                                              "--stay", "--coordinator", address_,
                                                              "--token-file", token_});
  }

  ProgramResult Ask(std::vector<std::string> command) const {
    command.insert(command.end(), {"--coordinator", address_, "--token-file", token_});
    return RunShoal(command);
  }
  void AwaitMembers(size_t count) const {
    const absl::Time deadline = absl::Now() + kLimit;
    while (absl::Now() < deadline) {
      const auto status = nlohmann::json::parse(Ask({"status", "--json"}).output, nullptr, false);
      if (!status.is_discarded() && status["members"].size() == count) {
        return;
      }
      absl::SleepFor(absl::Milliseconds(50));
    }
    FAIL() << "there are not " << count << " members after " << kLimit;
  }

  std::string DirectoryOf(const std::string& name) const { return run_ + "/" + name; }
  ProgramResult Train(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> command = {
        "train",
        *folder_ + "/job.yaml",
        "--token-file",
        token_,
        "--set",
        "checkpoint.directory=" + DirectoryOf(name),
        "--set",
        fmt::format("cluster={{coordinator: \"{}\", servers: 2, workers: 2, lease_seconds: 2}}",
                    address_)};
    command.insert(command.end(), more.begin(), more.end());
    return RunShoal(command);
  }
  // Returns the job's id.
  std::string Submit(const std::string& name, std::vector<std::string> more = {}) const {
    more.emplace_back("--detach");
    const ProgramResult submitted = Train(name, more);
    EXPECT_EQ(submitted.exit_code, 0) << submitted.errors;
    EXPECT_THAT(submitted.output, HasSubstr("job-"));
    std::string last;
    std::istringstream lines(submitted.output);
    for (std::string line; std::getline(lines, line);) {
      last = line;
    }
    return last;
  }
  nlohmann::json StateOf(const std::string& id) const {
    const ProgramResult jobs = Ask({"jobs", "--json"});
    std::istringstream lines(jobs.output);
    for (std::string line; std::getline(lines, line);) {
      const auto job = nlohmann::json::parse(line);
      if (job["job_id"] == id) {
        return job;
      }
    }
    return {};
  }
  void AwaitStep(const std::string& id, int64_t step) const {
    const absl::Time deadline = absl::Now() + kLimit;
    while (StateOf(id)["step"].get<int64_t>() < step && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
    }
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
    const std::string runs = Submit("runs");
    const std::string waits = Submit("waits");
    Program follower({BinDirectory() + "/shoal", "attach", runs, "--coordinator", address_,
                      "--token-file", token_});
    AwaitStep(runs, 4);
    coordinator_->Signal(signal);
    const ProgramResult ended = coordinator_->Wait(kLimit);
    EXPECT_EQ(ended.exit_code, signal == SIGKILL ? 128 + SIGKILL : 0) << ended.errors;
    StartCoordinator();
    EXPECT_EQ(AwaitEnd(runs), "done");
    EXPECT_EQ(AwaitEnd(waits), "done");
    // Told of the end that a stop is, or reads on over one that nobody announced.
    EXPECT_EQ(follower.Wait(kLimit).exit_code, signal == SIGKILL ? 0 : 75);
    EXPECT_EQ(HashOf(DirectoryOf("runs")), *hash_);
    EXPECT_EQ(HashOf(DirectoryOf("waits")), *hash_);
  }

  static std::string* folder_;
  static std::string* hash_;
  std::string run_;
  std::string address_;
  std::string token_;
  std::unique_ptr<Program> coordinator_;
  std::vector<std::unique_ptr<Program>> members_;
};
std::string* Service::folder_ = nullptr;
std::string* Service::hash_ = nullptr;

TEST_F(Service, JobsQueueUpAndHaveTheBitsTheyHaveAlone) {
  const std::string first = Submit("first");
  const std::string diverges = Submit("diverges", {"--set", "train.learning_rate=1e38"});
  const std::string waits = Submit("waits");
  const std::string last = Submit("last");
  EXPECT_THAT(StateOf(last)["state"].get<std::string>(), HasSubstr("ahead"));
  EXPECT_EQ(Train("last", {"--detach"}).exit_code, 2) << "two jobs in one folder";
  EXPECT_EQ(Ask({"stop", waits}).exit_code, 0);
  EXPECT_EQ(StateOf(waits)["state"], "interrupted");

  EXPECT_EQ(AwaitEnd(first), "done");
  EXPECT_EQ(AwaitEnd(diverges), "failed");
  EXPECT_EQ(AwaitEnd(last), "done");
  for (const char* name : {"first", "last"}) {
    EXPECT_EQ(HashOf(DirectoryOf(name)), *hash_) << name;
    EXPECT_TRUE(fs::exists(DirectoryOf(name) + "/huggingface/config.json")) << name;
    EXPECT_TRUE(fs::exists(DirectoryOf(name) + "/record/metrics.jsonl")) << name;
  }
  const ProgramResult attached = Ask({"attach", last});
  EXPECT_EQ(attached.exit_code, 0) << attached.errors;
  EXPECT_THAT(attached.output, HasSubstr("done after step 12"));
  EXPECT_NE(Ask({"attach", "job-none"}).exit_code, 0);

  for (const auto& [id, other] : {std::pair{first, last}, {last, first}}) {
    const std::string log = Ask({"logs", id}).output;
    for (const std::string line :
         {"coordinator: " + id + " is done", "server-0: ", "server-1: ", "worker-0: "}) {
      EXPECT_THAT(log, HasSubstr(line));
    }
    EXPECT_THAT(log, Not(HasSubstr(other + " is done")));
  }
  EXPECT_NE(Ask({"logs", "job-none"}).exit_code, 0);
  const std::string local = RunShoal({"logs", *folder_ + "/job.yaml"}).output;
  for (const char* process : {"coordinator: ", "server-1: ", "worker-0: "}) {
    EXPECT_THAT(local, HasSubstr(process));
  }

  const ProgramResult followed = Train("followed", {});
  EXPECT_EQ(followed.exit_code, 0) << followed.errors;
  EXPECT_EQ(HashOf(DirectoryOf("followed")), *hash_);
}

TEST_F(Service, AJobThatNeedsMoreServersThanAreThereIsRefusedOrWaits) {
  const std::vector<std::string> three = {
      "--set", fmt::format("cluster={{coordinator: \"{}\", servers: 3, workers: 2}}", address_)};
  const ProgramResult refused = Train("three", three);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("takes 3 servers (cluster.servers) and 2 are there"));
  std::vector<std::string> waiting = three;
  waiting.emplace_back("--wait-for-servers");
  const std::string id = Submit("three", waiting);
  EXPECT_EQ(StateOf(id)["state"], "waiting for 1 server");
  members_.push_back(StartMember("shoal-server"));
  EXPECT_EQ(AwaitEnd(id), "done");
  EXPECT_EQ(HashOf(DirectoryOf("three")), *hash_);
}

TEST_F(Service, AKilledCoordinatorGoesOnWithItsJobs) { EndTheCoordinator(SIGKILL); }
TEST_F(Service, AStoppedCoordinatorGoesOnWithItsJobs) { EndTheCoordinator(SIGTERM); }

TEST_F(Service, ALostMemberCostsNoJob) {
  for (const size_t lost : {0U, 1U}) {  // a server, a worker
    const std::string name = fmt::format("lost-{}", lost);
    const std::string id = Submit(name);
    AwaitStep(id, 4);
    members_[lost]->Signal(SIGKILL);
    members_[lost]->Wait(kLimit);
    const absl::Time deadline = absl::Now() + kLimit;
    while (lost == 0 &&  // without a worker it goes on
           StateOf(id)["state"].get<std::string>().find("waiting for 1 ") == std::string::npos &&
           absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    members_[lost] = StartMember(lost == 0 ? "shoal-server" : "shoal-worker");
    EXPECT_EQ(AwaitEnd(id), "done") << Ask({"attach", id}).errors;
    EXPECT_EQ(HashOf(DirectoryOf(name)), *hash_);
  }
}

TEST_F(Service, ASignalEndsWhoStays) {
  EXPECT_EQ(AwaitEnd(Submit("job")), "done");
  for (const auto& member : members_) {
    member->Signal(SIGTERM);
    const ProgramResult result = member->Wait(kLimit);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
  }
  coordinator_->Signal(SIGTERM);
  const ProgramResult result = coordinator_->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
}

// What a process holds: resident bytes, descriptors, threads.
struct Held {
  int64_t bytes = 0;
  int64_t descriptors = 0;
  int64_t threads = 0;
};

Held HeldBy(pid_t pid) {
  const auto count = [](const std::string& folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  const std::string process = fmt::format("/proc/{}", pid);
  return {.bytes = ResidentBytes(pid),
          .descriptors = count(process + "/fd"),
          .threads = count(process + "/task")};
}

TEST_F(Service, NothingOfAJobStays) {
  const char* asked = std::getenv("SHOAL_SERVICE_JOBS");
  const int jobs = asked == nullptr ? 8 : std::atoi(asked);
  std::vector<const Program*> processes = {coordinator_.get()};
  for (const auto& member : members_) {
    processes.push_back(member.get());
  }
  std::vector<Held> third;
  for (int job = 1; job <= jobs; ++job) {
    const std::string name = fmt::format("job-{}", job);
    ASSERT_EQ(AwaitEnd(Submit(name)), "done");
    ASSERT_EQ(HashOf(DirectoryOf(name)), *hash_);
    fs::remove_all(DirectoryOf(name));
    if (job == 3) {
      std::ranges::transform(processes, std::back_inserter(third),
                             [](const Program* process) { return HeldBy(process->pid()); });
    }
  }
  absl::SleepFor(absl::Seconds(1));  // connections that nobody uses are being closed
  for (size_t i = 0; i < processes.size(); ++i) {
    const Held now = HeldBy(processes[i]->pid());
    SCOPED_TRACE(fmt::format("process {}", i));
    EXPECT_LE(now.bytes, third[i].bytes + std::max<int64_t>(third[i].bytes / 50, 4 << 20));
    EXPECT_LE(now.descriptors, third[i].descriptors + 2);
    EXPECT_LE(now.threads, third[i].threads + 2);
  }
}

}  // namespace
}  // namespace shoal::testing
