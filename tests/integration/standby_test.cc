// Two coordinators with their state in a real etcd: the one that stands by goes on with the job
// when the leader is killed, stands still or loses etcd, and the end has the bits of an undisturbed
// run, each step once.
#include <signal.h>

#include <numeric>

#include "server/coordinator/state/testing/etcd_process.h"
#include "tests/integration/service.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Standby : public Service {
 protected:
  void SetUp() override {
    if (!server::testing::EtcdProcess::Exists()) {
      GTEST_SKIP() << "no etcd here: scripts/install-dependencies.sh --tests";
    }
    run_ = fmt::format("{}/{}", *folder_, SecureToken());
    std::filesystem::create_directories(run_);
    Random random(static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
    access_ = MakeClusterAccess(run_, random);
    addresses_ = {access_.address, MakeClusterAccess(run_ + "/..", random).address};
    access_.address = addresses_[0] + "," + addresses_[1];
    etcd_ = std::make_unique<server::testing::EtcdProcess>(run_ + "/etcd");
    StartEtcd();
    StartOne(0);
    AwaitMembers(access_, 0);
    StartOne(1);
    for (int i = 0; i < 2; ++i) {
      members_.push_back(StartMember("shoal-server"));
      members_.push_back(StartMember("shoal-worker"));
    }
    AwaitMembers(access_, 4);
    SlowDownWorkers();
  }
  void TearDown() override {
    members_.clear();
    for (auto& coordinator : coordinators_) {
      coordinator.reset();
    }
    etcd_.reset();
    std::filesystem::remove_all(run_);
  }

  void StartEtcd() const {
    const absl::Status started = etcd_->Start();
    ASSERT_TRUE(started.ok()) << started;
  }
  void StartOne(size_t which) {
    coordinators_[which] = std::make_unique<Program>(std::vector<std::string>{
        BinDirectory() + "/shoal-coordinator", "--stay", "--listen", addresses_[which],
        "--token-file", access_.token_file, "--state",
        fmt::format("etcd://{}/test", etcd_->endpoint()), "--lease-seconds", "2"});
  }
  ClusterAccess Only(size_t which) const {
    return {.address = addresses_[which], .token_file = access_.token_file};
  }
  ProgramResult AskOnly(size_t which) const { return Ask(Only(which), {"jobs", "--json"}); }
  bool Leads(size_t which) const { return AskOnly(which).exit_code == 0; }
  // How long it took.
  absl::Duration AwaitLead(size_t which) const {
    const absl::Time from = absl::Now();
    EXPECT_TRUE(Await([&] { return Leads(which); }));
    return absl::Now() - from;
  }
  void ExpectStandsBy(size_t which, const std::string& leader) const {
    ProgramResult asked;
    EXPECT_TRUE(Await([&] {
      asked = AskOnly(which);
      return asked.errors.find("it stands by, and " + leader + " leads") != std::string::npos;
    })) << asked.errors;
    EXPECT_NE(asked.exit_code, 0);
  }
  // Ends it, and returns what it has logged.
  std::string LogOf(size_t which) {
    coordinators_[which]->Signal(SIGTERM);
    const ProgramResult ended = coordinators_[which]->Wait(kLimit);
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    return ended.errors;
  }
  void ExpectOneHistory(const std::string& name) const {
    EXPECT_EQ(HashOf(DirectoryOf(name)), *hash_);
    std::vector<int64_t> steps(12);
    std::iota(steps.begin(), steps.end(), 1);
    // The last one before a takeover may be told again, where servers knew of it and etcd did not.
    std::vector<int64_t> recorded = StepsOf(name);
    EXPECT_LE(recorded.size(), steps.size() + 1);
    recorded.erase(std::ranges::unique(recorded).begin(), recorded.end());
    EXPECT_EQ(recorded, steps);
  }

  std::array<std::string, 2> addresses_;
  std::unique_ptr<server::testing::EtcdProcess> etcd_;
  std::array<std::unique_ptr<Program>, 2> coordinators_;
};

TEST_F(Standby, GoesOnWhereTheLeaderStandsStill) {
  ExpectStandsBy(1, addresses_[0]);
  const std::string runs = Submit("runs");
  AwaitStep(runs, 4);
  coordinators_[0]->Signal(SIGSTOP);
  const absl::Time stopped = absl::Now();
  EXPECT_LT(StepsOf(runs).size(), 12U) << "it was to be stopped in the middle";
  const absl::Duration lead = AwaitLead(1);
  EXPECT_EQ(AwaitEnd(runs), "done");
  const std::string next = Submit("next");
  absl::SleepFor(stopped + absl::Seconds(20) - absl::Now());
  coordinators_[0]->Signal(SIGCONT);
  ExpectStandsBy(0, addresses_[1]);
  EXPECT_EQ(AwaitEnd(next), "done");
  ExpectOneHistory("runs");
  ExpectOneHistory("next");
  fmt::print("the one that stood by led after {:.1f} s\n", absl::ToDoubleSeconds(lead));
  const std::string log = LogOf(0);
  EXPECT_THAT(log, HasSubstr("this coordinator leads no more, and stands by: "));
  EXPECT_THAT(log, HasSubstr("stands by: " + addresses_[1] + " leads"));
}

TEST_F(Standby, GoesOnWhereTheLeaderIsKilled) {
  const std::string runs = Submit("runs");
  const auto follower = Start(AsksOf("attach", runs, "--json"));
  AwaitStep(runs, 4);
  coordinators_[0]->Signal(SIGKILL);
  AwaitLead(1);
  StartOne(0);
  EXPECT_EQ(AwaitEnd(runs), "done");
  EXPECT_EQ(follower->Wait(kLimit).exit_code, 0);
  ExpectOneHistory("runs");
  const std::string next = Submit("next");
  AwaitStep(next, 4);
  coordinators_[1]->Signal(SIGKILL);
  AwaitLead(0);
  EXPECT_EQ(AwaitEnd(next), "done");
  ExpectOneHistory("next");
}

TEST_F(Standby, AJobOutlivesItsEtcd) {
  const std::string runs = Submit("runs");
  AwaitStep(runs, 2);
  etcd_->Kill();
  absl::SleepFor(absl::Seconds(1));
  StartEtcd();
  EXPECT_TRUE(Leads(0));
  EXPECT_EQ(AwaitEnd(runs), "done");
  ExpectOneHistory("runs");
  const std::string next = Submit("next");
  AwaitStep(next, 4);
  etcd_->Kill();
  EXPECT_TRUE(Await([&] { return !Leads(0); })) << "its lease ends";
  EXPECT_THAT(AskOnly(0).errors, HasSubstr("it stands by, and none leads at the moment"));
  StartEtcd();
  EXPECT_EQ(AwaitEnd(next), "done");
  ExpectOneHistory("next");
  const std::string log = LogOf(0);
  EXPECT_THAT(log, HasSubstr("the lease of 5 s in etcd could not be renewed (etcd at " +
                             etcd_->endpoint() + ": "));
}

TEST_F(Standby, WaitsForRoomInAFullEtcd) {
  etcd_->Put("of-others", std::string(1'000'000, 'x'));
  etcd_->Kill();
  const absl::Status full = etcd_->Start({"--quota-backend-bytes", "100000"});
  ASSERT_TRUE(full.ok()) << full;
  coordinators_[0]->Signal(SIGKILL);
  absl::SleepFor(absl::Seconds(10));  // its lease ends
  EXPECT_THAT(AskOnly(1).errors, HasSubstr("none leads at the moment"));
  etcd_->Kill();
  std::filesystem::remove_all(run_ + "/etcd");
  StartEtcd();
  AwaitLead(1);
  EXPECT_THAT(LogOf(1), HasSubstr("`etcdctl alarm disarm`"));
}

// A queue and its jobs are the next leader's, and who is told to end gives its lead back at once.
TEST_F(Standby, WhoEndsHandsOver) {
  const std::string runs = Submit("runs");
  const std::string waits = Submit("waits");
  AwaitStep(runs, 4);
  EXPECT_THAT(LogOf(0), Not(HasSubstr("leads no more")));
  EXPECT_LT(AwaitLead(1), absl::Seconds(4));
  EXPECT_EQ(AwaitEnd(runs), "done");
  EXPECT_EQ(AwaitEnd(waits), "done");
  EXPECT_EQ(HashOf(DirectoryOf("runs")), *hash_);
  ExpectOneHistory("waits");
}

// Its end wants a checkpoint, and that wants to be recorded.
TEST_F(Standby, WhoIsToldToEndEndsWithoutEtcdToo) {
  AwaitStep(Submit("runs", {"--set", "checkpoint.every_steps=100"}), 2);
  etcd_->Kill();
  coordinators_[0]->Signal(SIGTERM);
  const ProgramResult ended = coordinators_[0]->Wait(kLimit);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.errors, HasSubstr("this coordinator leads no more, and ends: "));
}

TEST_F(Standby, WhoIsToldToEndWhileItAsksForTheLeadEnds) {
  etcd_->Signal(SIGSTOP);
  const std::string port = run_ + "/port";
  Program asks({BinDirectory() + "/shoal-coordinator", "--stay", "--port-file", port,
                "--token-file", access_.token_file, "--state",
                fmt::format("etcd://{}/other", etcd_->endpoint())});
  ASSERT_TRUE(Await([&port] { return std::filesystem::exists(port); }));
  absl::SleepFor(absl::Milliseconds(300));
  asks.Signal(SIGTERM);
  absl::SleepFor(absl::Milliseconds(100));
  etcd_->Signal(SIGCONT);
  const ProgramResult ended = asks.Wait(kLimit);
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, Not(HasSubstr("leads, by")));
}

TEST_F(Standby, WaitsForAnEtcdThatIsNotThereAndRefusesAWrongUrl) {
  const auto start = [this](const std::string& state) {
    return std::make_unique<Program>(std::vector<std::string>{
        BinDirectory() + "/shoal-coordinator", "--token-file", access_.token_file, "--port-file",
        run_ + "/port", "--state", state});
  };
  const auto wrong = start("etcd://head:2379")->Wait(kLimit);
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.errors, HasSubstr("--state: is 'etcd://head:2379', expected a file, or "
                                      "etcd://HOST:PORT[,HOST:PORT...]/NAME"));
  const auto waits = start("etcd://127.0.0.1:1/test");
  ASSERT_TRUE(Await([this] { return std::filesystem::exists(run_ + "/port"); }));
  absl::SleepFor(absl::Seconds(3));
  waits->Signal(SIGTERM);
  const ProgramResult ended = waits->Wait(kLimit);
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("etcd at 127.0.0.1:1: "));
  EXPECT_THAT(ended.errors, HasSubstr("stands by, and asks again"));
}

}  // namespace
}  // namespace shoal::testing
