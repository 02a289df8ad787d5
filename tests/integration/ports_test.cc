// Ports of programs: one that the user chose and that is taken gives one line that names it, and
// exit code 2; very many who connect to one and say nothing stop neither a job nor its checkpoints.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>

#include "core/base/file.h"
#include "core/base/net/address.h"
#include "core/base/net/descriptors.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cluster_access.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;

// A port of this machine that others cannot have.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    socklen_t length = sizeof(address);
    auto* const bound = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_.get(), bound, length), 0);
    EXPECT_EQ(listen(socket_.get(), 1), 0);
    EXPECT_EQ(getsockname(socket_.get(), bound, &length), 0);
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

TEST(PortInUse, IsOneLineThatNamesThePortAndExitCodeTwo) {
  const TakenPort taken;
  const std::string port = std::to_string(taken.port());
  const std::string listen = "127.0.0.1:" + port;
  const std::string nobody = "127.0.0.1:1";  // never reached: the port is looked at first
  const std::vector<std::string> commands[] = {
      {"shoal-coordinator", "--listen", listen},
      {"shoal-coordinator", "--metrics-port", port},
      {"shoal-server", "--coordinator", nobody, "--listen", listen},
      {"shoal-server", "--coordinator", nobody, "--data-port", port},
      {"shoal-server", "--coordinator", nobody, "--metrics-port", port},
      {"shoal-worker", "--coordinator", nobody, "--metrics-port", port},
  };
  for (std::vector<std::string> command : commands) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(command, " ")));
    command.front() = BinDirectory() + "/" + command.front();
    Program program(command, {{"SHOAL_TOKEN", SecureToken()}});
    const ProgramResult result = program.Wait(absl::Seconds(20));
    EXPECT_EQ(result.exit_code, 2);
    const std::string said = result.output + result.errors;
    EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
    EXPECT_THAT(said, HasSubstr(port));
    EXPECT_THAT(said, HasSubstr("Address already in use"));
  }
}

constexpr int kIdle = 1000;

// Connects to a port so often, and says nothing.
std::vector<UniqueFd> IdleConnections(const std::string& address) {
  sockaddr_in to = {.sin_family = AF_INET};
  to.sin_port = htons(static_cast<in_port_t>(std::stoi(SplitAddress(address)->port)));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<UniqueFd> all;
  for (int i = 0; i < kIdle; ++i) {
    all.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_TRUE(all.back().valid());
    connect(all.back().get(), reinterpret_cast<sockaddr*>(&to), sizeof to);
  }
  return all;
}

// The address with that port after it.
std::string Neighbour(const std::string& address, int ports_on) {
  const AddressParts parts = *SplitAddress(address);
  return fmt::format("{}:{}", parts.host, std::stoi(parts.port) + ports_on);
}

// A program that has 1,024 descriptors: by its own will, which it may change, or at most.
std::unique_ptr<Program> WithFewDescriptors(const std::string& limit,
                                            std::vector<std::string> command) {
  command.front() = BinDirectory() + "/" + command.front();
  command.insert(command.begin(), {"/bin/sh", "-c", limit + " && exec \"$@\"", "sh"});
  return std::make_unique<Program>(command);
}

class IdleConnectionsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = FreshDirectory("idle_connections");
    RaiseDescriptorLimit();
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 8 * kIdle) {
      GTEST_SKIP() << "this process may open " << limit.rlim_cur << " descriptors alone";
    }
    ASSERT_NO_FATAL_FAILURE(MakeModel(folder_));
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/job.yaml", R"(
model: model
data: {train: train.jsonl, template: chatml, max_sequence_tokens: 512, microbatch_tokens: 1024,
    oversize: skip}
train: {steps: 30, minibatch_samples: 8, compute: fp32, learning_rate: 3e-3, warmup_steps: 2,
    threads_per_worker: 1}
service: {partition_bytes: 16KiB, accumulate: exact, transports: [tcp]}
cluster: {local: {servers: 2, workers: 2}, lease_seconds: 2}
checkpoint: {directory: alone, every_steps: 3, export_huggingface: false}
)")
                    .ok());
    const ProgramResult alone = RunShoal({"train", folder_ + "/job.yaml"});
    ASSERT_EQ(alone.exit_code, 0) << alone.errors;
    hash_ = HashOf(folder_ + "/alone");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  std::string hash_;
};

TEST_P(IdleConnectionsTest, StopNeitherAJobNorItsCheckpoints) {
  Random random(static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
  const ClusterAccess access = MakeClusterAccess(folder_, random);
  const std::unique_ptr<Program> coordinator =
      WithFewDescriptors(GetParam(), {"shoal-coordinator", "--listen", access.address,
                                      "--token-file", access.token_file, "--lease-seconds", "2"});
  AwaitMembers(access, 0);
  std::vector<std::unique_ptr<Program>> members;
  std::vector<std::string> ports = {access.address};
  for (int i = 0; i < 2; ++i) {
    const std::string listen = Neighbour(access.address, 1 + 2 * i);
    const std::string data = Neighbour(access.address, 2 + 2 * i);
    ports.insert(ports.end(), {listen, data});
    members.push_back(WithFewDescriptors(
        GetParam(),
        {"shoal-server", "--coordinator", access.address, "--token-file", access.token_file,
         "--listen", listen, "--data-port", SplitAddress(data)->port}));
    members.push_back(
        WithFewDescriptors(GetParam(), {"shoal-worker", "--coordinator", access.address,
                                        "--token-file", access.token_file, "--fault-seed", "1"}));
  }
  AwaitMembers(access, 4);
  Program job({BinDirectory() + "/shoal", "train", folder_ + "/job.yaml", "--json", "--token-file",
               access.token_file, "--set", "checkpoint.directory=" + folder_ + "/crowded", "--set",
               fmt::format("cluster={{coordinator: \"{}\", servers: 2, workers: 2, "
                           "lease_seconds: 2}}",
                           access.address)});
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (ParseSteps(job.OutputSoFar()).size() < 2 && job.Running() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  std::vector<std::vector<UniqueFd>> idle;
  for (const std::string& port : ports) {
    idle.push_back(IdleConnections(port));
  }
  EXPECT_LT(ParseSteps(job.OutputSoFar()).size(), 27U);  // checkpoints are still to come
  const ProgramResult result = job.Wait(absl::Seconds(60));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output + result.errors, ::testing::Not(HasSubstr("Too many open files")));
  EXPECT_EQ(HashOf(folder_ + "/crowded"), hash_);
}

INSTANTIATE_TEST_SUITE_P(Limits, IdleConnectionsTest,
                         ::testing::Values("ulimit -S -n 1024", "ulimit -n 1024"),
                         [](const auto& limit) {
                           return limit.param == "ulimit -n 1024" ? "AtMost1024" : "By1024";
                         });

}  // namespace
}  // namespace shoal::testing
