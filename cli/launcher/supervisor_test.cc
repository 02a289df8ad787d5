#include "cli/launcher/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "cli/launcher/testing/fake_programs.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SupervisorTest : public FakePrograms {
 protected:
  void SetUp() override {
    FakePrograms::SetUp();
    Program("shoal-server", "#!/bin/sh\necho index $JOB_COMPLETION_INDEX\nexec sleep 60\n");
  }
  void TearDown() override {
    cluster_.reset();
    FakePrograms::TearDown();
  }

  void Start() {
    auto started = LocalCluster::Start({.program_folder = folder_,
                                        .work_folder = folder_ + "/logs",
                                        .servers = 2,
                                        .workers = 1,
                                        .start_timeout = absl::Seconds(10)});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    supervisor_.emplace(
        *cluster_, [this](const std::string& line) { told_.push_back(line); }, clock_);
  }
  // Ends a process and checks until its end was seen; returns what the check said.
  absl::Status End(const std::string& name, int signal, bool start_again = true) {
    const pid_t pid = cluster_->PidOf(name);
    EXPECT_GT(pid, 0) << name << " does not run";
    EXPECT_EQ(kill(pid, signal), 0);
    return AwaitEnd(name, pid, start_again);
  }
  absl::Status AwaitEnd(const std::string& name, pid_t pid, bool start_again = true) {
    absl::Status status;
    for (int i = 0; i < 500 && status.ok() && cluster_->PidOf(name) == pid; ++i) {
      status = supervisor_->Check(start_again);
      RealClock().SleepFor(absl::Milliseconds(10));
    }
    EXPECT_NE(cluster_->PidOf(name), pid);
    return status;
  }
  std::string LogOf(const std::string& name, int lines) const {
    std::string log;
    for (int i = 0;
         i < 500 && (log.empty() || std::count(log.begin(), log.end(), '\n') < lines - 1); ++i) {
      log = TailOf(folder_ + "/logs/" + name + ".log", lines);
      RealClock().SleepFor(absl::Milliseconds(10));
    }
    return log;
  }

  ManualClock clock_;
  std::unique_ptr<LocalCluster> cluster_;
  std::optional<Supervisor> supervisor_;
  std::vector<std::string> told_;
};

TEST_F(SupervisorTest, StartsWhoWasKilledAgainAndSaysSoInALine) {
  Start();
  EXPECT_EQ(LogOf("server-1", 1), "index 1");
  EXPECT_TRUE(End("server-1", SIGKILL).ok());
  EXPECT_GT(cluster_->PidOf("server-1"), 0);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_THAT(told_[0], HasSubstr("server-1 (pid "));
  EXPECT_THAT(told_[0], HasSubstr("was killed by SIGKILL (Killed): started again (1 of 3 in 10m)"));
  EXPECT_EQ(told_[0].find('\n'), std::string::npos);
  EXPECT_EQ(LogOf("server-1", 2), "index 1\nindex 1") << "its number and its log";
}

TEST_F(SupervisorTest, ACoordinatorKeepsItsPortAndItsState) {
  Start();
  LogOf("coordinator", 1);
  EXPECT_TRUE(End("coordinator", SIGKILL).ok());
  const std::string log = LogOf("coordinator", 2);
  const std::string first = log.substr(0, log.find('\n'));
  const std::string second = log.substr(log.find('\n') + 1);
  EXPECT_THAT(first, HasSubstr("--listen 127.0.0.1:0 end"));
  EXPECT_THAT(second, HasSubstr("--listen 127.0.0.1:4321 end"));
  const std::string state = first.substr(first.find("--state"), 40);
  EXPECT_THAT(second, HasSubstr(state.substr(0, state.find(" --lease"))));
}

TEST_F(SupervisorTest, GivesEachProcessThreeRestartsInTenMinutes) {
  Start();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(End("worker-0", SIGSEGV).ok()) << i;
    EXPECT_TRUE(End("server-0", SIGSEGV).ok()) << i;
  }
  clock_.Advance(absl::Minutes(9));
  const absl::Status lost = End("worker-0", SIGSEGV);
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(std::string(Message(lost)), HasSubstr("started again 3 times in 10m"));
  EXPECT_EQ(cluster_->PidOf("worker-0"), 0);
  clock_.Advance(absl::Minutes(1));
  EXPECT_TRUE(End("server-0", SIGSEGV).ok());
}

TEST_F(SupervisorTest, WhoLeftInPeaceIsStartedAgain) {
  Program("shoal-worker", "#!/bin/sh\ntrap 'exit 75' TERM\nwhile :; do sleep 0.02; done\n");
  Start();
  RealClock().SleepFor(absl::Milliseconds(200));  // until it has its trap
  EXPECT_TRUE(End("worker-0", SIGTERM).ok());
  EXPECT_GT(cluster_->PidOf("worker-0"), 0);
  EXPECT_EQ(told_.size(), 1u);
}

TEST_F(SupervisorTest, WhoSaysWhyItEndsIsNotStartedAgain) {
  Program("shoal-worker", "#!/bin/sh\necho no pearls today >&2\nexit 4\n");
  Start();
  const absl::Status lost = AwaitEnd("worker-0", cluster_->PidOf("worker-0"));
  EXPECT_THAT(std::string(Message(lost)), HasSubstr("exited with status 4"));
  EXPECT_THAT(std::string(Message(lost)), HasSubstr("no pearls today"));
  EXPECT_THAT(told_, ElementsAre());
}

TEST_F(SupervisorTest, StartsNobodyAgainWhereItIsNotTo) {
  Start();
  const absl::Status lost = End("worker-0", SIGKILL, /*start_again=*/false);
  EXPECT_THAT(std::string(Message(lost)), HasSubstr("SIGKILL"));
  EXPECT_EQ(cluster_->PidOf("worker-0"), 0);
  EXPECT_THAT(told_, ElementsAre());
}

}  // namespace
}  // namespace shoal::cli
