#include "core/base/net/listener.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>

#include "absl/synchronization/mutex.h"
#include "core/base/net/address.h"
#include "core/base/net/descriptors.h"
#include "core/base/net/refuses_connections.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"

namespace shoal {
namespace {

TEST(SplitAddress, TakesTheLastColon) {
  EXPECT_EQ(SplitAddress("[::1]:4000")->host, "::1");
  EXPECT_EQ(SplitAddress("[::1]:4000")->port, "4000");
  EXPECT_EQ(SplitAddress("host:http")->port, "http");
  EXPECT_EQ(SplitAddress(":0")->host, "");
  EXPECT_FALSE(SplitAddress("host").has_value());
  EXPECT_EQ(HostOf("[::1]:4000"), "[::1]");
}

// Connected over the loopback of that family. Not valid: refused.
UniqueFd Dial(int port, int family = AF_INET) {
  sockaddr_in ipv4 = {.sin_family = AF_INET, .sin_port = htons(static_cast<in_port_t>(port))};
  ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 ipv6 = {.sin6_family = AF_INET6, .sin6_port = ipv4.sin_port};
  ipv6.sin6_addr = in6addr_loopback;
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto* const address = family == AF_INET ? reinterpret_cast<const sockaddr*>(&ipv4)
                                                : reinterpret_cast<const sockaddr*>(&ipv6);
  const socklen_t length = family == AF_INET ? sizeof ipv4 : sizeof ipv6;
  if (connect(fd.get(), address, length) != 0) {
    fd.Reset();
  }
  return fd;
}

// Whether the other end has closed it, once it or a byte has come.
bool IsClosed(const UniqueFd& fd) {
  char byte = 0;
  return recv(fd.get(), &byte, 1, 0) <= 0;
}

// Keeps connections, and sends each a byte.
class Kept {
 public:
  std::function<void(UniqueFd)> taker() {
    return [this](UniqueFd fd) {
      send(fd.get(), "", 1, MSG_NOSIGNAL);
      absl::MutexLock lock(&mutex_);
      connections_.push_back(std::move(fd));
    };
  }
  void Clear() {
    absl::MutexLock lock(&mutex_);
    connections_.clear();
  }

 private:
  absl::Mutex mutex_;
  std::vector<UniqueFd> connections_;
};

TEST(Listener, HandsConnectionsOverUntilItStops) {
  Kept kept;
  auto listener = Listener::Open("127.0.0.1:0").value();
  const int port = listener->port();
  EXPECT_TRUE(listener->is_local());
  listener->Start(kept.taker());
  EXPECT_FALSE(IsClosed(Dial(port)));
  EXPECT_FALSE(IsClosed(Dial(port)));
  listener->Stop();
  EXPECT_FALSE(Dial(port).valid());
  listener->Stop();
}

TEST(Listener, AWildcardIsThatOfBothFamilies) {
  if (!std::filesystem::exists("/proc/net/if_inet6")) {
    GTEST_SKIP() << "no IPv6 here";
  }
  for (const char* wildcard : {"0.0.0.0:0", "[::]:0"}) {
    Kept kept;
    const auto listener = Listener::Open(wildcard).value();
    listener->Start(kept.taker());
    EXPECT_FALSE(listener->is_local()) << wildcard;
    EXPECT_FALSE(IsClosed(Dial(listener->port(), AF_INET))) << wildcard;
    EXPECT_FALSE(IsClosed(Dial(listener->port(), AF_INET6))) << wildcard;
  }
}

TEST(Listener, SaysWhatIsWrongWithAnAddress) {
  const auto listener = Listener::Open("127.0.0.1:0").value();
  const std::string taken = fmt::format("127.0.0.1:{}", listener->port());
  EXPECT_REFUSED(Listener::Open(taken).status(),
                 "cannot listen on " + taken + ": Address already in use; choose another");
  EXPECT_REFUSED(Listener::Open("nonsense").status(), "'nonsense': write HOST:PORT");
  EXPECT_REFUSED(Listener::Open("127.0.0.1:http").status(), "cannot listen on '127.0.0.1:http'");
}

TEST(RefusesConnections, IsTrueOfWhoIsGoneAlone) {
  auto listener = Listener::Open("127.0.0.1:0").value();
  const std::string address = fmt::format("127.0.0.1:{}", listener->port());
  EXPECT_FALSE(RefusesConnections(address));
  listener.reset();
  EXPECT_TRUE(RefusesConnections(address));
  EXPECT_FALSE(RefusesConnections("no port"));
  EXPECT_FALSE(RefusesConnections("no.such.host.invalid:1"));
}

// Lowers the limit of this process for as long as it lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few = {.rlim_cur = limit, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_ = {};
};

TEST(Descriptors, ConnectionsLeaveAQuarterForFiles) {
  const FewDescriptors few(256);
  EXPECT_EQ(FirstDescriptorForFiles(), 192);
  RaiseDescriptorLimit();
  EXPECT_GT(FirstDescriptorForFiles(), 192);
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_LE(FirstDescriptorForFiles(), limit.rlim_cur / 4 * 3);
}

TEST(Listener, ConnectionsThatFillTheDescriptorsLeaveSomeForFiles) {
  const TemporaryFolder folder;
  const FewDescriptors few(256);
  Kept kept;
  const auto listener = Listener::Open("127.0.0.1:0").value();
  listener->Start(kept.taker());
  std::vector<UniqueFd> dials;  // of this process too, so two descriptors each
  bool closed = false;
  while (!closed && dials.size() < 256) {
    dials.push_back(Dial(listener->port()));
    ASSERT_TRUE(dials.back().valid()) << dials.size();
    closed = IsClosed(dials.back());
  }
  EXPECT_TRUE(closed);
  std::vector<InputFile> files;
  ASSERT_OK(WriteFileAtomically(folder / "file", "kept"));
  for (int i = 0; i < 32; ++i) {
    auto file = InputFile::Open(folder / "file");
    ASSERT_TRUE(file.ok()) << file.status();
    files.push_back(*std::move(file));
  }
  files.clear();
  dials.clear();
  kept.Clear();
  EXPECT_FALSE(IsClosed(Dial(listener->port())));
}

// As when files take all there are.
TEST(Listener, GoesOnOnceThereAreDescriptorsAgain) {
  Kept kept;
  const auto listener = Listener::Open("127.0.0.1:0").value();
  listener->Start(kept.taker());
  const FewDescriptors few(128);
  std::vector<UniqueFd> all;
  UniqueFd dial(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  do {
    all.emplace_back(dup(dial.get()));
  } while (all.back().valid());
  sockaddr_in address = {.sin_family = AF_INET,
                         .sin_port = htons(static_cast<in_port_t>(listener->port()))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(dial.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  pollfd ready = {.fd = dial.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ready, 1, /*milliseconds=*/300), 0);  // neither taken nor closed
  all.clear();
  EXPECT_FALSE(IsClosed(dial));
}

}  // namespace
}  // namespace shoal
