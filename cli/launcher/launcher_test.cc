#include "cli/launcher/launcher.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "cli/launcher/testing/fake_programs.h"
#include "core/base/file.h"
#include "core/base/metrics.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

class LauncherTest : public FakePrograms {
 protected:
  LocalClusterOptions Options() const {
    return {.program_folder = folder_,
            .work_folder = folder_ + "/logs",
            .servers = 2,
            .workers = 3,
            .threads_per_server = 5,
            .start_timeout = absl::Seconds(10)};
  }
  static absl::Status AwaitTrouble(LocalCluster& cluster) {
    for (int i = 0; i < 500; ++i) {
      if (absl::Status status = cluster.Check(); !status.ok()) {
        return status;
      }
      RealClock().SleepFor(absl::Milliseconds(10));
    }
    return absl::OkStatus();
  }
};

TEST_F(LauncherTest, StartsAllAndTakesThemDown) {
  const LocalClusterOptions options = Options();
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ((*cluster)->coordinator_address(), "127.0.0.1:4321");
  const auto found = FindRun(folder_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, "127.0.0.1:4321");
  const auto token = rpc::LoadToken(TokenFileIn(LogFolderOf(folder_)));
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_TRUE(token->Matches(options.token.secret()));
  std::vector<pid_t> pids;
  for (const auto* name :
       {"coordinator", "server-0", "server-1", "worker-0", "worker-1", "worker-2"}) {
    pids.push_back((*cluster)->PidOf(name));
    EXPECT_GT(pids.back(), 0) << name;
  }
  EXPECT_TRUE((*cluster)->Check().ok());
  (*cluster)->Finish(absl::Milliseconds(200));
  EXPECT_FALSE(FindRun(folder_).ok()) << "no cluster, nothing to ask";
  for (const pid_t pid : pids) {
    EXPECT_EQ(kill(pid, 0), -1) << "reaped, so gone for good";
  }
}

TEST_F(LauncherTest, TheTokenTravelsInTheEnvironmentAlone) {
  const LocalClusterOptions options = Options();
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string& secret = options.token.secret();
  std::string log;
  for (int i = 0; i < 500 && log.empty(); ++i) {
    log = TailOf(folder_ + "/logs/server-0.log", 1);
    RealClock().SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(log, "token " + secret + " threads 5");
  const std::string proc = "/proc/" + std::to_string((*cluster)->PidOf("server-0")) + "/cmdline";
  const auto command_line = ReadFile(proc);
  EXPECT_TRUE(!command_line.ok() || command_line->find(secret) == std::string::npos);
  EXPECT_EQ(getenv("SHOAL_TOKEN"), nullptr);
}

TEST_F(LauncherTest, WorkersTakeGpusInTurn) {
  Program("shoal-worker", "#!/bin/sh\necho $@ end\nexec sleep 60\n");
  LocalClusterOptions options = Options();
  options.gpus = {1, 3};
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (int worker = 0; worker < 3; ++worker) {
    std::string log;
    for (int i = 0; i < 500 && log.empty(); ++i) {
      log = TailOf(fmt::format("{}/logs/worker-{}.log", folder_, worker), 1);
      RealClock().SleepFor(absl::Milliseconds(10));
    }
    EXPECT_THAT(log, HasSubstr(worker % 2 == 0 ? "--device cuda:1 --gpu-workers 2 end"
                                               : "--device cuda:3 --gpu-workers 1 end"));
  }
}

TEST_F(LauncherTest, ServesMetricsOfEachToThisMachineAlone) {
  Program("shoal-server", "#!/bin/sh\necho $@ end\nexec sleep 60\n");
  LocalClusterOptions options = Options();
  options.metrics_port = 0;
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_THAT((*cluster)->metrics(),
              ::testing::ContainsRegex("^coordinator http://127.0.0.1:[0-9]+/metrics, server-0 "
                                       "http://127.0.0.1:[0-9]+/metrics, .*worker-2 "));
  std::string log;
  for (int i = 0; i < 500 && log.empty(); ++i) {
    log = TailOf(folder_ + "/logs/server-0.log", 1);
    RealClock().SleepFor(absl::Milliseconds(10));
  }
  EXPECT_THAT(log, ::testing::ContainsRegex("--metrics-host 127.0.0.1 --metrics-port [1-9]"));
}

TEST_F(LauncherTest, AMetricsPortInUseIsNamed) {
  Metrics taken;
  LocalClusterOptions options = Options();
  options.metrics_port = taken.Serve(0, "127.0.0.1").value();
  EXPECT_THAT(std::string(LocalCluster::Start(options).status().message()),
              HasSubstr(fmt::format("metrics on port {}: Address already", options.metrics_port)));
  options.metrics_port = 65534;
  EXPECT_THAT(std::string(LocalCluster::Start(options).status().message()),
              HasSubstr("metrics on port 65536"));
}

TEST_F(LauncherTest, ALostProcessIsNamed) {
  auto cluster = LocalCluster::Start(Options());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_EQ(kill((*cluster)->PidOf("worker-1"), SIGKILL), 0);
  const absl::Status status = AwaitTrouble(**cluster);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker-1 (pid "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("SIGKILL"));
}

TEST_F(LauncherTest, TheEndOfItsLogTellsWhy) {
  Program("shoal-server", "#!/bin/sh\necho no pearls today >&2\nexit 4\n");
  auto cluster = LocalCluster::Start(Options());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const absl::Status status = AwaitTrouble(**cluster);
  EXPECT_THAT(std::string(status.message()), HasSubstr("exited with status 4"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no pearls today"));
}

TEST_F(LauncherTest, LeavingWithStatusZeroIsNoTrouble) {
  Program("shoal-worker", "#!/bin/sh\nexit 0\n");
  auto cluster = LocalCluster::Start(Options());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  RealClock().SleepFor(absl::Milliseconds(100));
  EXPECT_TRUE((*cluster)->Check().ok());
}

TEST_F(LauncherTest, ACoordinatorThatCannotStartIsAnError) {
  Program("shoal-coordinator", "#!/bin/sh\necho port in use >&2\nexit 2\n");
  const auto cluster = LocalCluster::Start(Options());
  ASSERT_FALSE(cluster.ok());
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("port in use"));
}

TEST_F(LauncherTest, ACoordinatorThatOpensNoPortIsGivenUp) {
  Program("shoal-coordinator", "#!/bin/sh\nexec sleep 60\n");
  LocalClusterOptions options = Options();
  options.start_timeout = absl::Milliseconds(200);
  const auto cluster = LocalCluster::Start(options);
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LauncherTest, AMissingProgramIsNamed) {
  std::filesystem::remove(folder_ + "/shoal-worker");
  const auto cluster = LocalCluster::Start(Options());
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("shoal-worker"));
}

}  // namespace
}  // namespace shoal::cli
