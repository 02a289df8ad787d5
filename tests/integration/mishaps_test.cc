// Mishaps at random points of a run: whatever happens, the run or its resume ends with the bits of
// an undisturbed one, in time, and leaves no process and no half-written checkpoint.
// SHOAL_MISHAP_ROUNDS (1) repeats each at other points, which SHOAL_MISHAP_SEED draws (0: new ones
// each time; the seed is printed).
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <set>

#include "absl/strings/match.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/support/cluster_access.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 40;
constexpr int64_t kEvery = 6;  // steps between checkpoints
constexpr absl::Duration kLimit = absl::Seconds(40);

uint64_t Setting(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

uint64_t Seed() {
  uint64_t seed = Setting("SHOAL_MISHAP_SEED", 1);
  seed = seed != 0 ? seed : static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  std::cout << "SHOAL_MISHAP_SEED=" << seed << std::endl;
  return seed;
}

std::string Shoal() { return BinDirectory() + "/shoal"; }

// What all runs share: a tiny model and its data, and the hash of the undisturbed end.
class Shared : public ::testing::Environment {
 public:
  void SetUp() override {
    random = Random(Seed());
    folder = FreshDirectory("mishaps");
    ASSERT_NO_FATAL_FAILURE(MakeModel(folder));
    const std::string job = fmt::format(R"(
model: model
data: {{train: train.jsonl, template: chatml, max_sequence_tokens: 512, microbatch_tokens: 1024,
    oversize: skip}}
train: {{steps: {}, minibatch_samples: 24, compute: fp32, learning_rate: 3e-3, warmup_steps: 2,
    push: microbatch, threads_per_worker: 1}}
service: {{partition_bytes: 16KiB, accumulate: exact}}
cluster: {{local: {{servers: 2, workers: 2}}, lease_seconds: 2}}
checkpoint: {{directory: undisturbed, every_steps: {}, export_huggingface: false}}
)",
                                        kSteps, kEvery);
    ASSERT_TRUE(WriteFileAtomically(folder + "/job.yaml", job).ok());
    ASSERT_EQ(RunShoal({"train", folder + "/job.yaml"}, kLimit).exit_code, 0);
    hash = HashOf(folder + "/undisturbed", kLimit);
    ASSERT_EQ(hash.size(), 33u);
  }
  void TearDown() override { fs::remove_all(folder); }

  std::string folder;
  std::string hash;
  Random random{0};
};
Shared* shared = static_cast<Shared*>(::testing::AddGlobalTestEnvironment(new Shared()));

class Mishaps : public ::testing::Test {
 protected:
  void SetUp() override {
    run_ = fmt::format("{}/{}", shared->folder, SecureToken());
    fs::create_directories(run_);
  }
  void TearDown() override { fs::remove_all(run_); }

  std::vector<std::string> TrainCommand(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command = {Shoal(),  "train", shared->folder + "/job.yaml",
                                        "--json", "--set", "checkpoint.directory=" + directory()};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  std::unique_ptr<Program> Start(const std::vector<std::string>& more = {}) const {
    return std::make_unique<Program>(TrainCommand(more), Environment());
  }
  // All processes of a run are known by it.
  std::map<std::string, std::string> Environment() const {
    return {{"SHOAL_DISK_MISHAP", run_ + "/disk"},
            {"SHOAL_CLOCK_MISHAP", run_ + "/clock"},
            {"LD_PRELOAD", SHOAL_MISHAP_LIBRARIES}};
  }
  void SetDisk(const std::string& mishap) const { Set("disk", mishap); }
  void StepClock(int64_t seconds) const { Set("clock", std::to_string(seconds)); }
  void Set(const std::string& what, const std::string& mishap) const {
    const std::string file = fmt::format("{}/{}", run_, what);
    std::ofstream(file + ".new") << mishap;
    fs::rename(file + ".new", file);
  }

  // A step at which a run of kSteps is still far from its end.
  static int64_t RandomStep() { return shared->random.Between(1, kSteps - 12); }
  static void WaitForStep(const Program& program, int64_t step) {
    const std::string line = fmt::format("\"step\":{},", step);
    const absl::Time deadline = absl::Now() + kLimit;
    while (!absl::StrContains(program.OutputSoFar(), line)) {
      ASSERT_TRUE(absl::Now() < deadline && program.Running())
          << program.OutputSoFar() << "\nno step " << step;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  // Processes of this run whose program's name ends so.
  std::set<pid_t> Processes(const std::string& program = "") const {
    std::set<pid_t> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc", error)) {
      const std::string pid = entry.path().filename().string();
      if (pid.find_first_not_of("0123456789") != std::string::npos) {
        continue;
      }
      std::ifstream environment(entry.path() / "environ");
      std::ifstream command(entry.path() / "cmdline");
      const std::string all((std::istreambuf_iterator<char>(environment)), {});
      std::string name;
      std::getline(command, name, '\0');
      if (absl::StrContains(all, run_ + "/disk") && name.ends_with(program) && !name.empty()) {
        found.insert(std::stoi(pid));
      }
    }
    return found;
  }
  pid_t OneOf(const std::string& program) const {
    const std::set<pid_t> pids = Processes(program);
    return pids.empty()
               ? 0
               : *std::next(pids.begin(), static_cast<int64_t>(shared->random.Below(pids.size())));
  }

  // Nothing of the run is left but its directory.
  void ExpectNothingLeft() const {
    const absl::Time deadline = absl::Now() + absl::Seconds(5);
    while (!Processes().empty() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    EXPECT_TRUE(Processes().empty());
  }
  // Goes on from where the run was left, if need be, and compares the end.
  void ExpectTheSameEnd() const {
    ExpectNothingLeft();
    const ProgramResult rest = Start({"--resume=auto"})->Wait(kLimit);
    ASSERT_EQ(rest.exit_code, 0) << rest.errors;
    EXPECT_EQ(HashOf(directory(), kLimit), shared->hash);
    EXPECT_TRUE(server::UnfinishedCheckpoints(directory())->empty());
    ExpectNothingLeft();
  }
  int64_t NewestStep() const {
    const auto newest = server::NewestCheckpoint(directory());
    return newest.ok() && newest->has_value() ? (*newest)->step : 0;
  }
  static int64_t LastStep(const ProgramResult& result) {
    const std::vector<StepLine> steps = ParseSteps(result.output);
    return steps.empty() ? 0 : steps.back().step;
  }
  std::string directory() const { return run_ + "/checkpoints"; }

  // Each round in a folder of its own.
  void Repeat(const std::function<void()>& mishap) {
    for (uint64_t round = 0; round < Setting("SHOAL_MISHAP_ROUNDS", 1); ++round) {
      TearDown();
      SetUp();
      mishap();
    }
  }

  std::string run_;
};

#define MISHAP(name)              \
  class name : public Mishaps {   \
   protected:                     \
    void Happen();                \
  };                              \
  TEST_F(name, LosesNothing) {    \
    Repeat([this] { Happen(); }); \
  }                               \
  void name::Happen()

MISHAP(SlowDisk) {
  const auto run = Start();
  WaitForStep(*run, RandomStep());
  SetDisk("slow 15");
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  ExpectTheSameEnd();
}

MISHAP(DiskFullForAWhile) {
  const auto run = Start();
  WaitForStep(*run, RandomStep());
  SetDisk("full");
  absl::SleepFor(absl::Milliseconds(300));
  SetDisk("");
  const ProgramResult result = run->Wait(kLimit);
  if (result.exit_code != 0) {  // three checkpoints in that time
    EXPECT_THAT(result.errors, HasSubstr("No space left on device"));
  }
  ExpectTheSameEnd();
}

MISHAP(DiskFullForGood) {
  const auto run = Start();
  WaitForStep(*run, RandomStep());
  SetDisk("full");
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("No space left on device"));
  EXPECT_TRUE(server::UnfinishedCheckpoints(directory())->empty()) << "the disk is full of them";
  SetDisk("");
  ExpectTheSameEnd();
}

MISHAP(ReadOnlyDisk) {
  const auto run = Start();
  WaitForStep(*run, RandomStep());
  SetDisk("read-only");
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("Read-only file system"));
  SetDisk("");
  ExpectTheSameEnd();
}

MISHAP(ClosedPipe) {
  std::string command;
  for (const std::string& argument : TrainCommand()) {
    command += "'" + argument + "' ";
  }
  Program run({"bash", "-c",
               fmt::format("set -o pipefail; {} | head -n {} > /dev/null", command, RandomStep())},
              Environment());
  const ProgramResult result = run.Wait(kLimit);
  EXPECT_EQ(result.exit_code, 75) << result.errors;
  EXPECT_GT(NewestStep(), 0);
  ExpectTheSameEnd();
}

MISHAP(DoubleSignals) {
  for (const int signal : {SIGTERM, SIGINT}) {
    fs::remove_all(directory());
    const auto run = Start();
    WaitForStep(*run, RandomStep());
    run->Signal(signal);
    absl::SleepFor(absl::Milliseconds(shared->random.Between(0, 30)));
    run->Signal(signal);
    const ProgramResult result = run->Wait(kLimit);
    EXPECT_EQ(result.exit_code, 75) << result.errors;
    EXPECT_GE(NewestStep(), LastStep(result)) << "no committed step is lost";
    ExpectTheSameEnd();
  }
}

MISHAP(StoppedCoordinator) {
  const auto run = Start();
  WaitForStep(*run, RandomStep());
  const pid_t coordinator = OneOf("/shoal-coordinator");
  kill(coordinator, SIGSTOP);
  absl::SleepFor(absl::Milliseconds(1600));  // of a lease of 2 s
  kill(coordinator, SIGCONT);
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  ExpectTheSameEnd();
}

MISHAP(HungCoordinator) {
  const auto run = Start();
  WaitForStep(*run, RandomStep());
  kill(OneOf("/shoal-coordinator"), SIGSTOP);
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 1) << result.errors;
  ExpectTheSameEnd();
}

MISHAP(KilledProcess) {
  for (const char* program : {"/shoal-worker", "/shoal-server", "/shoal-coordinator"}) {
    fs::remove_all(directory());
    const auto run = Start();
    WaitForStep(*run, RandomStep());
    kill(OneOf(program), SIGKILL);
    const ProgramResult result = run->Wait(kLimit);
    EXPECT_EQ(result.exit_code, 0) << program << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("started again"));
    ExpectTheSameEnd();
  }
}

MISHAP(KilledProcessOfARunThatIsToEndThen) {
  for (const char* program : {"/shoal-worker", "/shoal-server", "/shoal-coordinator"}) {
    fs::remove_all(directory());
    // Its one worker: another would go on and might end the run first.
    const auto run = Start({"--set", "queue.max_restarts=0", "--set", "cluster.local.workers=1"});
    WaitForStep(*run, RandomStep());
    kill(OneOf(program), SIGKILL);
    const ProgramResult result = run->Wait(kLimit);
    EXPECT_EQ(result.exit_code, 1) << program << result.errors;
    if (program == std::string("/shoal-worker")) {
      EXPECT_GE(NewestStep(), LastStep(result)) << "servers hold every weight";
    }
    ExpectTheSameEnd();
  }
}

MISHAP(SteppedClock) {
  for (const int64_t seconds : {-3600, 3600}) {
    fs::remove_all(directory());
    StepClock(0);
    const auto run = Start();
    WaitForStep(*run, RandomStep());
    StepClock(seconds);
    const ProgramResult result = run->Wait(kLimit);
    EXPECT_EQ(result.exit_code, 0) << seconds << result.errors;
    ExpectTheSameEnd();
  }
}

MISHAP(HungMemberWhileTheClockIsStepped) {
  // Not a coordinator whose clock is set back: gRPC's timers, which find it, go by the wall's.
  const std::pair<const char*, int64_t> cases[] = {{"/shoal-worker", -3600},
                                                   {"/shoal-worker", 3600},
                                                   {"/shoal-server", -3600},
                                                   {"/shoal-server", 3600},
                                                   {"/shoal-coordinator", 3600}};
  for (const auto& [program, seconds] : cases) {
    fs::remove_all(directory());
    StepClock(0);
    const auto run = Start({"--set", "queue.max_restarts=0"});
    WaitForStep(*run, RandomStep());
    kill(OneOf(program), SIGSTOP);
    absl::SleepFor(absl::Milliseconds(shared->random.Between(0, 500)));
    StepClock(seconds);
    const ProgramResult result = run->Wait(kLimit);
    // Others do what a worker had in hand.
    const int expected = program == std::string("/shoal-worker") ? 0 : 1;
    EXPECT_EQ(result.exit_code, expected) << program << seconds << result.errors;
    ExpectTheSameEnd();
  }
}

MISHAP(KilledCommand) {
  const auto run = Start();
  WaitForStep(*run, RandomStep());
  run->Signal(SIGKILL);
  EXPECT_EQ(run->Wait(kLimit).exit_code, 128 + SIGKILL);
  ExpectTheSameEnd();
}

MISHAP(TwoCommandsInOneFolder) {
  const auto run = Start();
  WaitForStep(*run, RandomStep());
  for (const char* way : {"--resume=auto", "--overwrite", "--resume"}) {
    const ProgramResult other = Start({way})->Wait(kLimit);
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(other.errors, HasSubstr("another shoal train"));
  }
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  ExpectTheSameEnd();
}

MISHAP(WrongResume) {
  const auto run = Start();
  WaitForStep(*run, RandomStep());
  run->Signal(SIGTERM);
  EXPECT_EQ(run->Wait(kLimit).exit_code, 75);
  for (const char* other : {"data.seed=9", "train.minibatch_samples=8", "data.template=plain"}) {
    const ProgramResult wrong = Start({"--resume", "--set", other})->Wait(kLimit);
    EXPECT_EQ(wrong.exit_code, 2) << other;
    EXPECT_THAT(wrong.errors, HasSubstr("--accept-changes"));
  }
  EXPECT_EQ(Start({"--overwrite", "--set", "data.train=/nowhere"})->Wait(kLimit).exit_code, 2);
  EXPECT_EQ(Start()->Wait(kLimit).exit_code, 2) << "a new run where there is one";
  ExpectTheSameEnd();
}

// By hand, as on several machines: the command may go and the coordinator stays.
class ByHand : public Mishaps {
 protected:
  void StartCluster() {
    access_ = MakeClusterAccess(run_, shared->random);
    StartCoordinator();
    AwaitMembers(access_, 0);
    for (int i = 0; i < 2; ++i) {
      members_.push_back(StartMember("shoal-server", {"--listen", "127.0.0.1:0"}));
      members_.push_back(StartMember("shoal-worker", {}));
    }
  }
  void StartCoordinator() {
    coordinator_ = std::make_unique<Program>(
        std::vector<std::string>{BinDirectory() + "/shoal-coordinator", "--listen", access_.address,
                                 "--token-file", access_.token_file, "--state", run_ + "/state.db"},
        Environment());
  }
  std::unique_ptr<Program> StartMember(const std::string& program,
                                       const std::vector<std::string>& more) {
    std::vector<std::string> command = {BinDirectory() + "/" + program, "--coordinator",
                                        access_.address, "--token-file", access_.token_file};
    command.insert(command.end(), more.begin(), more.end());
    return std::make_unique<Program>(command, Environment());
  }
  std::unique_ptr<Program> Submit(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"--token-file", access_.token_file, "--set",
                                          fmt::format("cluster={{coordinator: \"{}\", servers: 2, "
                                                      "workers: 2, lease_seconds: 2}}",
                                                      access_.address)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Start(arguments);
  }
  void StopCluster() {
    members_.clear();
    coordinator_.reset();
  }

  ClusterAccess access_;
  std::unique_ptr<Program> coordinator_;
  std::vector<std::unique_ptr<Program>> members_;
};

TEST_F(ByHand, ARestartedCoordinatorGoesOnWithTheRun) {
  Repeat([this] {
    StartCluster();
    const auto run = Submit();
    WaitForStep(*run, RandomStep());
    coordinator_->Signal(SIGKILL);
    coordinator_->Wait(kLimit);
    StartCoordinator();
    const ProgramResult result = run->Wait(kLimit);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("coordinator restarted ("));
    StopCluster();
    ExpectTheSameEnd();
  });
}

// The second time while the disk hangs that its checkpoint is for.
TEST_F(ByHand, AServerThatIsToldToLeaveTwiceLeavesAtOnce) {
  StartCluster();
  const auto run = Submit({"--set", "cluster.min_servers=2"});  // the other may not have its part
  WaitForStep(*run, RandomStep());
  SetDisk("slow 20000");
  members_[0]->Signal(SIGTERM);
  absl::SleepFor(absl::Milliseconds(2500));
  EXPECT_TRUE(members_[0]->Running());
  members_[0]->Signal(SIGTERM);
  const ProgramResult left = members_[0]->Wait(absl::Seconds(10));
  EXPECT_EQ(left.exit_code, 1);
  EXPECT_THAT(left.errors, HasSubstr("ending without a checkpoint of what this server holds"));
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, ContainsRegex("lost server [01] .*: it left: SIGTERM"));
  StopCluster();
  SetDisk("");
  ExpectTheSameEnd();
}

TEST_F(ByHand, ASecondRunTakesTheFolderOfACoordinatorWithoutCommand) {
  Repeat([this] {
    StartCluster();
    const auto first = Submit();
    WaitForStep(*first, RandomStep());
    SetDisk("slow 20");  // it is in the middle of a checkpoint when the other comes
    first->Signal(SIGKILL);
    first->Wait(kLimit);
    absl::SleepFor(absl::Milliseconds(shared->random.Between(0, 500)));
    ProgramResult second = Start({"--resume=auto"})->Wait(kLimit);
    for (int writes = 0; second.exit_code == 1 && writes < 3; ++writes) {  // of the first
      EXPECT_THAT(second.errors, HasSubstr("meanwhile: start again"));
      second = Start({"--resume=auto"})->Wait(kLimit);
    }
    EXPECT_EQ(second.exit_code, 0) << second.errors;
    EXPECT_EQ(HashOf(directory(), kLimit), shared->hash);
    EXPECT_EQ(RunShoal({"checkpoint", "verify", directory()}, kLimit).exit_code, 0);
    StopCluster();
    SetDisk("");
    ExpectTheSameEnd();
  });
}

}  // namespace
}  // namespace shoal::testing
