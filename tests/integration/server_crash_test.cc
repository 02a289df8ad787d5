// A server that is killed at every kind of moment and started again. With one copy of the state the
// job goes back to its newest checkpoint at most, with two copies no committed step is done again;
// nobody else is started again, and the end has the bits of an undisturbed run.
#include <signal.h>

#include <numeric>

#include "tests/integration/service.h"

namespace shoal::testing {
namespace {

constexpr int64_t kEverySteps = 3;  // a checkpoint
constexpr int64_t kSteps = 12;

std::vector<int64_t> EachOnce(int64_t steps) {
  std::vector<int64_t> each(static_cast<size_t>(steps));
  std::iota(each.begin(), each.end(), 1);
  return each;
}

// Of a test.
std::string NameOf(std::string point) {
  point.resize(point.find(':'));
  std::ranges::replace(point, ' ', '_');
  return point;
}

class ServerCrash : public Service {
 protected:
  // Of the servers that are there, the first is one that ends at that point (crash_point.h).
  void Arm(const std::string& point) {
    SCOPED_TRACE(point);
    members_[0]->Signal(SIGTERM);
    EXPECT_EQ(members_[0]->Wait(kLimit).exit_code, 0);
    members_[0] = StartCrashing(point);
    AwaitMembers(access_, 4);
  }
  std::unique_ptr<Program> StartCrashing(const std::string& point) const {
    return StartMember(SHOAL_CRASHING_SERVER, {}, {{"SHOAL_CRASH_AT", point}});
  }
  // It has come to its end, and another begins.
  void AwaitCrashAndStartAgain(std::unique_ptr<Program>& server) const {
    const ProgramResult ended = server->Wait(kLimit);
    ASSERT_EQ(ended.exit_code, 128 + SIGKILL) << ended.errors;
    server = StartMember("shoal-server");
  }
  void ExpectTheUndisturbedEnd(const std::string& id, const std::string& hash) {
    EXPECT_EQ(AwaitEnd(id), "done") << Ask(access_, {"logs", id}).output;
    EXPECT_EQ(HashOf(DirectoryOf("crash")), hash);
    for (const auto& member : members_) {
      EXPECT_TRUE(member->Running()) << "nobody else is started again";
    }
  }
  void CrashAt(const std::string& point, bool replicas) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(Arm(point));
    const std::string id =
        Submit("crash", replicas ? std::vector<std::string>{"--set", "service.replicas=2"}
                                 : std::vector<std::string>{});
    ASSERT_NO_FATAL_FAILURE(AwaitCrashAndStartAgain(members_[0]));
    ExpectTheUndisturbedEnd(id, *hash_);
    const std::vector<int64_t> steps = StepsOf("crash");
    if (replicas) {
      EXPECT_EQ(steps, EachOnce(kSteps));
    } else {
      EXPECT_LE(std::ssize(steps), kSteps + kEverySteps);
    }
  }
};

class ServerCrashInAStep : public ServerCrash,
                           public ::testing::WithParamInterface<std::tuple<const char*, bool>> {};

INSTANTIATE_TEST_SUITE_P(
    Points, ServerCrashInAStep,
    ::testing::Combine(::testing::Values("begin_attempt:8", "begin_attempt done:8", "prepare:8",
                                         "prepare done:8", "commit:8", "commit done:8",
                                         "write_checkpoint:3", "write_checkpoint done:3"),
                       ::testing::Bool()),
    [](const auto& info) {
      return NameOf(std::get<0>(info.param)) + (std::get<1>(info.param) ? "_with_replicas" : "");
    });

TEST_P(ServerCrashInAStep, CostsWhatItMay) {
  const auto& [point, replicas] = GetParam();
  CrashAt(point, replicas);
}

TEST_F(ServerCrash, WhileItGivesItsGradientsCostsNoStep) { CrashAt("read_state:20", true); }
TEST_F(ServerCrash, WhileItTakesGradientsCostsNoStep) { CrashAt("replicate:8", true); }
TEST_F(ServerCrash, OnceItHasGradientsCostsNoStep) { CrashAt("replicate done:8", true); }

// While others come: the job has more steps.
class ServerCrashInAWave : public ServerCrash {
 protected:
  static constexpr int64_t kEveryMoreSteps = 20;

  // Returns the hash of an undisturbed one.
  std::string Begin(int64_t steps, std::string& id) {
    std::vector<std::string> more = {"--set", fmt::format("train.steps={}", steps), "--set",
                                     fmt::format("checkpoint.every_steps={}", kEveryMoreSteps)};
    EXPECT_EQ(AwaitEnd(Submit("fixed", more)), "done");
    SlowDownWorkers();
    more.insert(more.end(), {"--set", "cluster.elastic=true"});
    id = Submit("crash", more);
    AwaitStep(id, 1);
    return HashOf(DirectoryOf("fixed"));
  }
  void AwaitThreeServers() const {
    EXPECT_TRUE(Await([&] {
      const ProgramResult status = Ask(access_, {"scale", "status", "--json"});
      return status.exit_code == 0 && nlohmann::json::parse(status.output)["servers"] == 3;
    }));
  }
};

// One after the other; the job has what it had, and moves with the next.
TEST_F(ServerCrashInAWave, ThoseThatComeCostNoStep) {
  constexpr int64_t kSteps = 480;
  std::string id;
  const std::string hash = Begin(kSteps, id);
  for (const char* point : {"configure:1", "configure done:1", "reserve:1", "reserve done:1",
                            "fetch:1", "fetch done:1"}) {
    SCOPED_TRACE(point);
    const ProgramResult ended = StartCrashing(point)->Wait(kLimit);
    ASSERT_EQ(ended.exit_code, 128 + SIGKILL) << ended.errors;
  }
  members_.push_back(StartMember("shoal-server"));
  AwaitThreeServers();
  ExpectTheUndisturbedEnd(id, hash);
  EXPECT_EQ(StepsOf("crash"), EachOnce(kSteps));
}

TEST_F(ServerCrashInAWave, OneThatGivesStateCostsStepsSinceTheCheckpoint) {
  constexpr int64_t kSteps = 120;
  ASSERT_NO_FATAL_FAILURE(Arm("read_state:1"));
  std::string id;
  const std::string hash = Begin(kSteps, id);
  members_.push_back(StartMember("shoal-server"));
  ASSERT_NO_FATAL_FAILURE(AwaitCrashAndStartAgain(members_[0]));
  ExpectTheUndisturbedEnd(id, hash);
  EXPECT_LE(std::ssize(StepsOf("crash")), kSteps + kEveryMoreSteps);
}

}  // namespace
}  // namespace shoal::testing
