// What calls without a token hold of a process's memory when they announce much and never end.
#include <grpcpp/create_channel.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "core/base/clock.h"
#include "core/base/testing/folder.h"
#include "core/rpc/certificates/certificate_folder.h"
#include "core/rpc/channel.h"
#include "core/rpc/health.h"
#include "core/rpc/server.h"
#include "core/rpc/testing/any_services.h"
#include "core/rpc/testing/http2_peer.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

using ::testing::NiceMock;

constexpr int kConnections = 20;
constexpr int64_t kAnnounced = 64 << 20;
constexpr int64_t kAllowed = 16 << 20;

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct Cost {
  int64_t taken = 0;     // by the server, of all connections
  int64_t resident = 0;  // that this process grew by at most
};

// Until all have sent what they can; then the connections stand, and `meanwhile` is called.
Cost CostOf(
    int port, const std::vector<std::string>& paths, const std::string& certificates,
    const std::function<void()>& meanwhile = [] {}) {
  std::vector<std::unique_ptr<Http2Peer>> peers;
  for (int i = 0; i < kConnections; ++i) {
    peers.push_back(std::make_unique<Http2Peer>(port, certificates));
    EXPECT_TRUE(peers.back()->connected());
  }
  const int64_t before = ResidentBytes();
  std::atomic<int64_t> most = before;
  std::vector<int64_t> taken(kConnections);
  std::atomic<int> sending = kConnections;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kConnections; ++i) {
    threads.emplace_back([&, i] {
      taken[i] = peers[i]->CallUnfinished(paths[i % paths.size()], kAnnounced);
      --sending;
    });
  }
  while (sending > 0) {
    most = std::max<int64_t>(most, ResidentBytes());
    RealClock().SleepFor(absl::Milliseconds(1));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  meanwhile();
  most = std::max<int64_t>(most, ResidentBytes());
  return {std::accumulate(taken.begin(), taken.end(), int64_t{0}), most - before};
}

void ExpectLittle(const Cost& cost) {
  EXPECT_LE(cost.taken, kAllowed);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what is given back
  EXPECT_LE(cost.resident, kAllowed);
#endif
}

// All methods, and what is none.
const std::vector<std::string>& Paths() {
  static const std::vector<std::string> paths = {
      "/shoal.proto.Coordinator/SubmitJob", "/shoal.proto.Coordinator/WatchJob",
      "/shoal.proto.Coordinator/NextStep", "/shoal.proto.Coordinator/NoSuchMethod",
      "/grpc.health.v1.Health/Check"};
  return paths;
}

class UnfinishedCallsTest : public ::testing::Test {
 protected:
  void Serve(const Security& security) {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(MakeCoordinatorService(&coordinator_));
    auto server = Server::Start({.security = security}, std::move(services));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void ExpectCall(const Security& security) {
    const auto channel =
        Channel::Create(fmt::format("127.0.0.1:{}", server_->port()), security, Role::kCoordinator);
    EXPECT_TRUE(absl::IsUnknown(channel->Call(&CoordinatorService::GetStatus, {}).status()));
  }

  const Token token_ = Token::Generate();
  NiceMock<AnyCoordinator> coordinator_;  // answers Unknown
  std::unique_ptr<Server> server_;
};

TEST_F(UnfinishedCallsTest, WithoutATokenCostLittle) {
  Serve(token_);
  const Cost cost = CostOf(server_->port(), Paths(), "", [this] { ExpectCall(token_); });
  ExpectLittle(cost);
}

TEST_F(UnfinishedCallsTest, WithACertificateAndWithoutATokenCostLittle) {
  const TemporaryFolder folder;
  const absl::Time now = WallTime();
  const Validity good = {now - absl::Hours(1), now + absl::Hours(24)};
  const std::string certificates = folder / "certificates";
  ASSERT_TRUE(MakeCertificateFolder(
                  {.folder = certificates, .name_space = "demo", .ca = good, .roles = good})
                  .ok());
  const auto of = [&](Role role) {
    return Security::Create(token_, {.folder = certificates}, role).value();
  };
  Serve(of(Role::kCoordinator));
  const Cost cost = CostOf(server_->port(), Paths(), certificates + "/client",
                           [&] { ExpectCall(of(Role::kClient)); });
  ExpectLittle(cost);
}

TEST_F(UnfinishedCallsTest, ToProbesCostLittle) {
  const auto health = Health::Serve(0, "127.0.0.1:9").value();
  const Cost cost = CostOf(health->port(), {"/grpc.health.v1.Health/Check"}, "");
  ExpectLittle(cost);
}

}  // namespace
}  // namespace shoal::rpc
