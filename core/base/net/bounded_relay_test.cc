#include "core/base/net/bounded_relay.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "core/base/testing/status.h"

namespace shoal {
namespace {

// A peer's end, and the one that serves it.
struct Ends {
  UniqueFd peer;
  UniqueFd server;
};

Ends Connect(BoundedRelay& relay) {
  std::array<int, 2> fds = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
  return {UniqueFd(fds[0]), relay.Add(UniqueFd(fds[1]))};
}

// What comes until there is so much, or the connection ends.
std::string Receive(const UniqueFd& fd, size_t wanted) {
  std::string got;
  std::array<char, 4096> bytes;
  pollfd ready = {.fd = fd.get(), .events = POLLIN, .revents = 0};
  while (got.size() < wanted && poll(&ready, 1, /*milliseconds=*/30'000) == 1) {
    const ssize_t size = recv(fd.get(), bytes.data(), bytes.size(), 0);
    if (size <= 0) {
      break;
    }
    got.append(bytes.data(), static_cast<size_t>(size));
  }
  return got;
}

void Send(const UniqueFd& fd, const std::string& text) {
  send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

TEST(BoundedRelay, PassesOnBothWays) {
  const auto relay =
      BoundedRelay::Start({.bytes = 1000, .time = absl::Minutes(1), .connections = 2}).value();
  Ends one = Connect(*relay);
  const Ends other = Connect(*relay);
  Send(one.peer, "hello");
  Send(other.peer, "good day");
  EXPECT_EQ(Receive(one.server, 5), "hello");
  EXPECT_EQ(Receive(other.server, 8), "good day");
  Send(one.server, "welcome");
  EXPECT_EQ(Receive(one.peer, 7), "welcome");
  one.server.Reset();
  EXPECT_EQ(Receive(one.peer, 1), "") << "closed";
}

TEST(BoundedRelay, ClosesWhatIsBeyondItsLimits) {
  const auto relay =
      BoundedRelay::Start({.bytes = 10'000, .time = absl::Minutes(1), .connections = 1}).value();
  const Ends one = Connect(*relay);
  const Ends other = Connect(*relay);
  EXPECT_FALSE(other.server.valid());
  EXPECT_EQ(Receive(other.peer, 1), "") << "closed: there is one already";
  Send(one.peer, std::string(50'000, 'x'));
  EXPECT_EQ(Receive(one.server, 50'000).size(), 10'000U);
  EXPECT_EQ(Receive(one.peer, 1), "");
  const Ends next = Connect(*relay);
  EXPECT_TRUE(next.server.valid());

  const auto brief =
      BoundedRelay::Start({.bytes = 1000, .time = absl::ZeroDuration(), .connections = 1}).value();
  EXPECT_EQ(Receive(Connect(*brief).peer, 1), "");
}

}  // namespace
}  // namespace shoal
