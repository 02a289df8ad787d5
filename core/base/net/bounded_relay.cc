#include "core/base/net/bounded_relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal {
namespace {

constexpr int kLookMilliseconds = 1000;  // for those whose time is over
constexpr int64_t kAnyAnswer = 1 << 20;

// Passes on what has come, at most `most` bytes; returns how many, 0 for none yet, below 0 once the
// connection is over. What does not fit into the socket's buffer at once ends it.
ssize_t PassOn(int from, int to, int64_t most) {
  std::array<char, 4096> bytes;
  const auto wanted = std::min<size_t>(bytes.size(), static_cast<size_t>(most));
  const ssize_t received = recv(from, bytes.data(), wanted, MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return 0;
  }
  if (received <= 0) {
    return -1;
  }
  const ssize_t sent =
      send(to, bytes.data(), static_cast<size_t>(received), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == received ? sent : -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BoundedRelay>> BoundedRelay::Start(const Limits& limits) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return ErrnoToStatus(errno, "making an eventfd");
  }
  std::unique_ptr<BoundedRelay> relay(new BoundedRelay(limits, std::move(wake)));
  relay->thread_ = std::thread([raw = relay.get()] { raw->Run(); });
  return relay;
}

BoundedRelay::BoundedRelay(const Limits& limits, UniqueFd wake)
    : limits_(limits), wake_(std::move(wake)) {}

BoundedRelay::~BoundedRelay() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  thread_.join();
}

UniqueFd BoundedRelay::Add(UniqueFd peer) {
  std::array<int, 2> ends = {-1, -1};
  absl::MutexLock lock(&mutex_);
  if (pairs_.size() >= limits_.connections ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return {};
  }
  pairs_.push_back({.peer = std::move(peer),
                    .server = UniqueFd(ends[0]),
                    .left = limits_.bytes,
                    .ends = RealClock().Now() + limits_.time});
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  return UniqueFd(ends[1]);
}

bool BoundedRelay::Pass(Pair& pair) {
  const ssize_t asked = PassOn(pair.peer.get(), pair.server.get(), pair.left);
  pair.left -= std::max<ssize_t>(asked, 0);
  return asked >= 0 && pair.left > 0 && PassOn(pair.server.get(), pair.peer.get(), kAnyAnswer) >= 0;
}

void BoundedRelay::Run() {
  std::vector<pollfd> ready;
  for (;;) {
    ready = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    {
      absl::MutexLock lock(&mutex_);
      const absl::Time now = RealClock().Now();
      std::erase_if(pairs_, [now](Pair& pair) { return pair.ends <= now || !Pass(pair); });
      if (stopping_) {
        return;
      }
      for (const Pair& pair : pairs_) {
        ready.push_back({.fd = pair.peer.get(), .events = POLLIN, .revents = 0});
        ready.push_back({.fd = pair.server.get(), .events = POLLIN, .revents = 0});
      }
    }
    poll(ready.data(), ready.size(), kLookMilliseconds);
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t size = read(wake_.get(), &drained, sizeof drained);
  }
}

}  // namespace shoal
