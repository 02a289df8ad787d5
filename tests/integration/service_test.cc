// A cluster that stays: job after job on the same processes, queued, stopped, failed, with the
// coordinator killed in between; each job has the bits that it has alone.
#include "tests/integration/service.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "core/rpc/channel.h"
#include "core/rpc/parameter_server_service.h"
#include "tests/support/process_memory.h"

namespace shoal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Service, JobsQueueUpAndHaveTheBitsTheyHaveAlone) {
  const std::string first = Submit("first");
  const std::string diverges = Submit("diverges", {"--set", "train.learning_rate=1e38"});
  const std::string waits = Submit("waits");
  const std::string last = Submit("last");
  EXPECT_THAT(StateOf(last)["state"].get<std::string>(), HasSubstr("ahead"));
  EXPECT_EQ(Train("last", {"--detach"}).exit_code, 2) << "two jobs in one folder";
  EXPECT_EQ(Ask(access_, {"stop", waits}).exit_code, 0);
  EXPECT_EQ(StateOf(waits)["state"], "interrupted");

  EXPECT_EQ(AwaitEnd(first), "done");
  EXPECT_EQ(AwaitEnd(diverges), "failed");
  EXPECT_EQ(AwaitEnd(last), "done");
  for (const char* name : {"first", "last"}) {
    EXPECT_EQ(HashOf(DirectoryOf(name)), *hash_) << name;
    EXPECT_TRUE(fs::exists(DirectoryOf(name) + "/huggingface/config.json")) << name;
    EXPECT_TRUE(fs::exists(DirectoryOf(name) + "/record/metrics.jsonl")) << name;
  }
  const ProgramResult attached = Ask(access_, {"attach", last});
  EXPECT_EQ(attached.exit_code, 0) << attached.errors;
  EXPECT_THAT(attached.output, HasSubstr("done after step 12"));
  EXPECT_NE(Ask(access_, {"attach", "job-none"}).exit_code, 0);

  for (const auto& [id, other] : {std::pair{first, last}, {last, first}}) {
    for (const std::string& line : std::vector<std::string>{
             "coordinator: " + id + " is done", "server-0: ", "server-1: ", "worker-0: "}) {
      EXPECT_TRUE(AwaitInLog(id, line)) << line;
    }
    EXPECT_THAT(Ask(access_, {"logs", id}).output, Not(HasSubstr(other + " is done")));
  }
  EXPECT_NE(Ask(access_, {"logs", "job-none"}).exit_code, 0);
  const ProgramResult followed = Train("followed", {});
  EXPECT_EQ(followed.exit_code, 0) << followed.errors;
  EXPECT_EQ(HashOf(DirectoryOf("followed")), *hash_);
}

// Its pod was evicted, say, while the job went on.
TEST_F(Service, WhoComesBackToAJobFollowsIt) {
  SlowDownWorkers();
  const std::string id = Submit("a");
  const ProgramResult again = Train("a", {"--resume=auto"});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.errors, ContainsRegex(id + " .* has .*/a: following it"));
  EXPECT_EQ(HashOf(DirectoryOf("a")), *hash_);
  // Over, it is one to go on from.
  const ProgramResult over = Train("a", {"--resume=auto"});
  EXPECT_EQ(over.exit_code, 0) << over.errors;
  EXPECT_THAT(over.errors, Not(HasSubstr("following")));
}

TEST_F(Service, AJobThatNeedsMoreServersThanAreThereIsRefusedOrWaits) {
  const std::vector<std::string> three = {
      "--set",
      fmt::format("cluster={{coordinator: \"{}\", servers: 3, workers: 2}}", access_.address)};
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

// Longer than a lease.
TEST_F(Service, WhoFollowsWaitsForACoordinatorThatIsAway) {
  SlowDownWorkers();
  std::vector<std::unique_ptr<Program>> followers;
  followers.push_back(Start(TrainCommand("away", {})));
  ASSERT_TRUE(Await([&] { return !Jobs().empty(); }));
  const auto id = Jobs()[0]["job_id"].get<std::string>();
  followers.push_back(Start(AsksOf("attach", id, "--json")));
  followers.push_back(Start(AsksOf("logs", id, "--follow")));
  AwaitStep(id, 2);
  for (const auto& follower : followers) {
    EXPECT_TRUE(Await([&] { return !follower->OutputSoFar().empty(); }));
  }
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait(kLimit);
  absl::SleepFor(absl::Seconds(4));
  StartCoordinator();
  for (const auto& follower : followers) {
    const ProgramResult ended = follower->Wait(kLimit);
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    EXPECT_THAT(ended.errors,
                ContainsRegex("coordinator at .*; waiting for it for [0-9]+m[0-9]+s at most"));
    EXPECT_THAT(ended.errors, HasSubstr("the coordinator answers again"));
  }
  EXPECT_EQ(HashOf(DirectoryOf("away")), *hash_);
}

TEST_F(Service, AWorkerOfAnotherKindIsWarnedOfOrRefused) {
  SlowDownWorkers();
  const std::string exact = Submit("exact", {"--set", "train.exact_devices=true"});
  AwaitStep(exact, 2);
  members_[1]->Signal(SIGKILL);
  members_[1]->Wait(kLimit);
  members_[1] = StartMember("shoal-worker", {}, {{"ONEDNN_MAX_CPU_ISA", "SSE41"}});
  EXPECT_EQ(AwaitEnd(exact), "done");
  EXPECT_EQ(HashOf(DirectoryOf("exact")), *hash_);
  EXPECT_THAT(Ask(access_, {"attach", exact}).errors,
              ContainsRegex("warning: worker [0-9] .* is refused: it computes on CPU .* sse41"));
  const std::string mixed = Submit("mixed");
  EXPECT_EQ(AwaitEnd(mixed), "done");
  EXPECT_THAT(Ask(access_, {"attach", mixed}).errors,
              ContainsRegex("warning: bits may differ with worker [0-9] "));
}

TEST_F(Service, ALostMemberCostsNoJob) {
  for (const size_t lost : {0U, 1U}) {  // a server, a worker
    const std::string name = fmt::format("lost-{}", lost);
    const std::string id = Submit(name);
    AwaitStep(id, 4);
    members_[lost]->Signal(SIGKILL);
    members_[lost]->Wait(kLimit);
    if (lost == 0) {  // without a worker it goes on
      AwaitState(id, "waiting for 1 ");
    }
    members_[lost] = StartMember(lost == 0 ? "shoal-server" : "shoal-worker");
    EXPECT_EQ(AwaitEnd(id), "done") << Ask(access_, {"attach", id}).errors;
    EXPECT_EQ(HashOf(DirectoryOf(name)), *hash_);
  }
}

TEST_F(Service, AKilledMemberIsNoticedByItsConnection) {
  SlowDownWorkers();
  const std::string id = Submit(
      "noticed", {"--set", fmt::format("cluster={{coordinator: \"{}\", servers: 2, workers: 2, "
                                       "lease_seconds: 3600}}",
                                       access_.address)});
  AwaitStep(id, 2);
  members_[1]->Signal(SIGKILL);
  EXPECT_EQ(AwaitEnd(id), "done");
  EXPECT_EQ(HashOf(DirectoryOf("noticed")), *hash_);
  EXPECT_THAT(Ask(access_, {"logs", id}).output,
              ContainsRegex("worker [01] .* its connection broke, and it was not back within 1 s"));
}

// Another gets what it holds; with the only one gone, its next life goes on from a checkpoint.
TEST_F(Service, AServerThatIsToldToLeaveCostsNoStep) {
  SlowDownWorkers();
  const std::string id = Submit("leaves", {"--set", "checkpoint.every_steps=0"});
  AwaitStep(id, 2);
  members_[0]->Signal(SIGTERM);
  members_[0]->Signal(SIGTERM);  // of its process group, say: the same one
  const ProgramResult left = members_[0]->Wait(kLimit);
  EXPECT_EQ(left.exit_code, 0) << left.errors;
  members_[2]->Signal(SIGTERM);
  EXPECT_EQ(members_[2]->Wait(kLimit).exit_code, 0);
  AwaitState(id, "waiting for 1 server");
  members_[0] = StartMember("shoal-server");
  EXPECT_EQ(AwaitEnd(id), "done");
  EXPECT_EQ(HashOf(DirectoryOf("leaves")), *hash_);
  std::vector<int64_t> each(12);
  std::iota(each.begin(), each.end(), 1);
  EXPECT_EQ(StepsOf("leaves"), each);
}

// 2, 4 and then 3 servers, as `kubectl scale` would have it; and 2 by a drain.
TEST_F(Service, ServersThatComeAndGoCostNoBit) {
  constexpr int kSteps = 240;
  std::vector<std::string> longer = {"--set", fmt::format("train.steps={}", kSteps)};
  EXPECT_EQ(AwaitEnd(Submit("fixed", longer)), "done");
  SlowDownWorkers();
  longer.insert(longer.end(), {"--set", "cluster.elastic=true"});
  const std::string id = Submit("elastic", longer);
  AwaitStep(id, 1);
  const auto await = [&](int servers) {
    EXPECT_TRUE(Await([&] {
      const ProgramResult status = Ask(access_, {"scale", "status", "--json"});
      return status.exit_code == 0 && nlohmann::json::parse(status.output)["servers"] == servers;
    })) << servers;
  };
  const auto refused = [&](const std::vector<std::string>& wish, const char* why) {
    const ProgramResult asked = Ask(access_, wish);
    EXPECT_EQ(asked.exit_code, 2) << why;
    EXPECT_THAT(asked.errors, HasSubstr(why));
    EXPECT_EQ(std::ranges::count(asked.errors, '\n'), 1);
  };
  members_.push_back(StartMember("shoal-server"));
  members_.push_back(StartMember("shoal-server"));
  await(4);
  refused({"scale", "--servers", "3"}, "has cluster.elastic: its servers are those that are there");
  refused({"drain", "server-9"}, "there is no server-9");
  refused({"drain", "worker-0"}, "'worker-0' is no server");
  members_[0]->Signal(SIGTERM);
  EXPECT_EQ(members_[0]->Wait(kLimit).exit_code, 0);
  await(3);
  const ProgramResult drained = Ask(access_, {"drain", "server-3", "--wait", "--json"});
  EXPECT_EQ(drained.exit_code, 0) << drained.errors;
  EXPECT_EQ(nlohmann::json::parse(drained.output)["gone"], true);
  await(2);
  EXPECT_EQ(AwaitEnd(id), "done") << Ask(access_, {"logs", id}).output;
  EXPECT_EQ(HashOf(DirectoryOf("elastic")), HashOf(DirectoryOf("fixed")));
  std::vector<int64_t> each(kSteps);
  std::iota(each.begin(), each.end(), 1);
  EXPECT_EQ(StepsOf("elastic"), each);
}

// It has the token, knows the job and says the highest term that there is.
TEST_F(Service, AHolderOfTheTokenCommandsNoServer) {
  SlowDownWorkers();
  const std::string id = Submit("commanded");
  AwaitStep(id, 2);
  const auto token = rpc::LoadToken(access_.token_file);
  ASSERT_TRUE(token.ok()) << token.status();
  proto::ReleaseJobRequest release;
  release.set_job_id(id);
  release.set_term(std::numeric_limits<int64_t>::max());
  release.set_run(std::numeric_limits<int64_t>::max());
  int servers = 0;
  const auto status = nlohmann::json::parse(Ask(access_, {"status", "--json"}).output);
  for (const auto& member : status["members"]) {
    if (member["role"] == "server") {
      const auto server = rpc::Channel::Create(member["address"], *token, rpc::Role::kServer);
      EXPECT_EQ(server->Call(&rpc::ParameterServerService::ReleaseJob, release).status().code(),
                absl::StatusCode::kUnauthenticated);
      ++servers;
    }
  }
  EXPECT_EQ(servers, 2);
  // Its next life has what the servers said to this one.
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait(kLimit);
  StartCoordinator();
  EXPECT_EQ(AwaitEnd(id), "done");
  EXPECT_EQ(HashOf(DirectoryOf("commanded")), *hash_);
}

// Nothing is written before it is lost, and the one in reserve takes its place.
TEST_F(Service, ALossBeforeTheFirstCheckpointBeginsAgainFromTheModel) {
  SlowDownWorkers();
  members_.push_back(StartMember("shoal-server"));
  AwaitMembers(access_, 5);
  const std::string id = Submit("early", {"--set", "checkpoint.every_steps=0"});
  AwaitStep(id, 4);
  members_[0]->Signal(SIGKILL);
  EXPECT_EQ(AwaitEnd(id), "done") << Ask(access_, {"attach", id}).errors;
  EXPECT_EQ(HashOf(DirectoryOf("early")), *hash_);
  EXPECT_GT(std::ranges::count(StepsOf("early"), 1), 1);
  EXPECT_THAT(Ask(access_, {"logs", id}).output,
              ContainsRegex("lost server [01].*: goes on from the model when"));
}

TEST_F(Service, AJobThatDoesNotRestoreEndsByNameWithItsServer) {
  SlowDownWorkers();
  const std::string id = Submit("fails", {"--set", "service.on_server_loss=fail"});
  AwaitStep(id, 4);
  members_[0]->Signal(SIGKILL);
  EXPECT_EQ(AwaitEnd(id), "failed");
  const ProgramResult attached = Ask(access_, {"attach", id});
  EXPECT_EQ(attached.exit_code, 1);
  EXPECT_THAT(
      attached.errors,
      ContainsRegex("lost server [01] .*; go on from the checkpoint of step [0-9]+ with --"));
  members_[0]->Wait(kLimit);
  members_[0] = StartMember("shoal-server");
  AwaitMembers(access_, 4);
  EXPECT_EQ(AwaitEnd(Submit("fails", {"--resume"})), "done");
  EXPECT_EQ(HashOf(DirectoryOf("fails")), *hash_);
}

TEST_F(Service, AJobThatDoesNotFitIsRefusedWithFigures) {
  const std::map<std::string, std::string> small = {{"SHOAL_HOST_MEMORY", "1MiB"}};
  for (const size_t server : {0U, 2U}) {
    members_[server]->Signal(SIGTERM);
    members_[server]->Wait(kLimit);
    members_[server] = StartMember("shoal-server", {}, small);
  }
  AwaitMembers(access_, 4);
  const ProgramResult refused = Train("large", {"--detach"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, ContainsRegex("with 2 servers the job needs .*iB of memory of the 2 "
                                            "on .*, where .* are free: a smaller "));
  EXPECT_EQ(std::ranges::count(refused.errors, '\n'), 1);
  EXPECT_EQ(Ask(access_, {"jobs"}).output, "no jobs\n");
}

// What a user may get wrong beside a job that runs: one line each, and the job goes on.
TEST_F(Service, AMistakeCostsTheJobAtHandNothing) {
  constexpr int kSteps = 48;  // until all mistakes are made
  SlowDownWorkers();
  const std::string id = Submit("runs", {"--set", fmt::format("train.steps={}", kSteps)});
  AwaitStep(id, 4);  // there is a checkpoint
  ProgramResult resumes;
  EXPECT_TRUE(Await([&] {  // once no checkpoint comes between its look and its refusal
    resumes = Train("runs", {"--detach", "--resume"});
    return resumes.errors.find("meanwhile: start again") == std::string::npos;
  }));
  EXPECT_EQ(resumes.exit_code, 2);
  EXPECT_THAT(resumes.errors, HasSubstr("runs: stop it, or name another folder"));

  const std::string waits = Submit("waits");
  const auto third = Start(TrainCommand("third", {}));
  EXPECT_TRUE(Await([&] { return Jobs().size() == 3; }));
  EXPECT_THAT(Ask(access_, {"jobs"}).output,
              ContainsRegex(waits + " +waiting for 1 job ahead +0 of 12 "));
  third->Signal(SIGINT);
  const ProgramResult gone = third->Wait(kLimit);
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_THAT(gone.errors, HasSubstr(" waits for 2 jobs ahead\n"));
  EXPECT_EQ(Ask(access_, {"stop", waits, "--json"}).output,
            "{\"event\":\"stopping\",\"job_id\":\"" + waits + "\"}\n");

  const ProgramResult taken = StartMember("shoal-server", {"--index", "0"})->Wait(kLimit);
  EXPECT_EQ(taken.exit_code, 1);
  EXPECT_THAT(taken.errors, HasSubstr("is there already; start this one with another --index"));

  const std::string other = run_ + "/other";
  std::ofstream(other) << SecureToken();
  fs::permissions(other, fs::perms::owner_read | fs::perms::owner_write);
  for (const std::string program : {"shoal-server", "shoal-worker"}) {
    const ProgramResult stranger =
        Program({BinDirectory() + "/" + program, "--stay", "--coordinator", access_.address,
                 "--token-file", other})
            .Wait(kLimit);
    EXPECT_EQ(stranger.exit_code, 1) << program;
    EXPECT_THAT(stranger.errors, HasSubstr("another one than this process was started with"));
  }
  const ProgramResult asks =
      RunShoal({"jobs", "--coordinator", access_.address, "--token-file", other});
  EXPECT_EQ(asks.exit_code, 1);
  EXPECT_THAT(asks.errors, HasSubstr("another one than this process was started with"));
  EXPECT_EQ(std::ranges::count(asks.errors, '\n'), 1);

  EXPECT_EQ(AwaitEnd(id), "done");
  std::vector<int64_t> each(kSteps);
  std::iota(each.begin(), each.end(), 1);
  EXPECT_EQ(StepsOf("runs"), each);
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
  pid_t pid = 0;
  int64_t bytes = 0;
  int64_t descriptors = 0;
  int64_t threads = 0;
};

Held HeldBy(pid_t pid) {
  const auto count = [](const std::string& folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  const std::string process = fmt::format("/proc/{}", pid);
  return {.pid = pid,
          .bytes = ResidentBytes(pid),
          .descriptors = count(process + "/fd"),
          .threads = count(process + "/task")};
}

constexpr int kLast = 24;  // jobs in which nothing may grow

// How much each third of the last jobs has over the one before, at least: a leak adds each time.
int64_t Growth(const std::vector<Held>& held, int64_t Held::*what) {
  const auto third = [&](int number) {
    const auto from = held.end() - kLast + number * kLast / 3;
    std::vector<int64_t> values;
    std::transform(from, from + kLast / 3, std::back_inserter(values),
                   [what](const Held& now) { return now.*what; });
    std::ranges::sort(values);
    return values[kLast / 6];  // the median
  };
  return std::min(third(1) - third(0), third(2) - third(1));
}

// Of a night fifty jobs, with others and a restart of the coordinator among them.
TEST_F(Service, NothingOfAJobStays) {
  const char* asked = std::getenv("SHOAL_SERVICE_JOBS");
  const int jobs = asked == nullptr ? 8 : std::atoi(asked);
  constexpr int kFirst = 3;                                  // by then all is allocated that stays
  constexpr int kRestart = 12;                               // of the coordinator
  std::vector<std::vector<Held>> held(1 + members_.size());  // by process, then job
  for (int job = 1; job <= jobs; ++job) {
    if (job == kRestart) {
      EndTheCoordinator(SIGKILL);
    }
    const std::string name = fmt::format("job-{}", job);
    ASSERT_EQ(AwaitEnd(Submit(name)), "done");
    ASSERT_EQ(HashOf(DirectoryOf(name)), *hash_);
    fs::remove_all(DirectoryOf(name));
    for (size_t i = 0; i < held.size(); ++i) {
      const Held now = HeldBy(i == 0 ? coordinator_->pid() : members_[i - 1]->pid());
      std::erase_if(held[i], [&](const Held& other) { return other.pid != now.pid; });
      held[i].push_back(now);
    }
  }
  absl::SleepFor(absl::Seconds(1));  // connections that nobody uses are being closed
  for (size_t i = 0; i < held.size(); ++i) {
    SCOPED_TRACE(fmt::format("process {}", i));
    const Held now = HeldBy(held[i].back().pid);
    ASSERT_GE(std::ssize(held[i]), kFirst) << "SHOAL_SERVICE_JOBS is too few, or just after one";
    const Held& first = held[i][kFirst - 1];
    EXPECT_LE(now.bytes, first.bytes + std::max<int64_t>(first.bytes / 50, 4 << 20));
    EXPECT_LE(now.descriptors, first.descriptors + 2);
    EXPECT_LE(now.threads, first.threads + 2);
    if (std::ssize(held[i]) >= kFirst + kLast) {
      EXPECT_LE(Growth(held[i], &Held::bytes), 128 << 10);
      EXPECT_LE(Growth(held[i], &Held::descriptors), 0);
      EXPECT_LE(Growth(held[i], &Held::threads), 0);
    }
  }
}

}  // namespace
}  // namespace shoal::testing
