#include "core/transport/tcp/sockets.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/io_thread.h"

namespace shoal::transport {
namespace {

// A waiter that returns within this time is worth lending to. Arriving bytes also wait this long
// when a borrower does not return.
constexpr absl::Duration kMostAway = absl::Microseconds(200);
// A wait that has taken this long will take longer: the I/O thread need not check on it.
constexpr absl::Duration kLongWait = absl::Milliseconds(2);

int Control(int epoll, int operation, int socket, uint64_t id, uint32_t interest) {
  epoll_event event = {};
  event.events = interest;
  event.data.u64 = id;
  return epoll_ctl(epoll, operation, socket, &event);
}

}  // namespace

absl::StatusOr<std::shared_ptr<TcpSockets>> TcpSockets::Create(TcpIoThread* io) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) {
    return ErrnoToStatus(errno, "making an epoll for a tcp event queue");
  }
  std::shared_ptr<TcpSockets> sockets(new TcpSockets(io, std::move(epoll)));
  SHOAL_RETURN_IF_ERROR(io->LookAfter(sockets));
  return sockets;
}

bool TcpSockets::Add(uint64_t id, int socket, std::shared_ptr<TcpConnectionState> connection) {
  {
    absl::MutexLock lock(&mutex_);
    connections_[id] = std::move(connection);
  }
  return Control(epoll_.get(), EPOLL_CTL_ADD, socket, id, EPOLLIN) == 0;
}

void TcpSockets::Remove(uint64_t id, int socket) {
  Control(epoll_.get(), EPOLL_CTL_DEL, socket, id, 0);
  absl::MutexLock lock(&mutex_);
  connections_.erase(id);
}

void TcpSockets::AwaitWritable(uint64_t id, int socket, bool wanted) {
  Control(epoll_.get(), EPOLL_CTL_MOD, socket, id, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

std::vector<std::shared_ptr<TcpConnectionState>> TcpSockets::connections() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<TcpConnectionState>> connections;
  for (const auto& [id, connection] : connections_) {
    connections.push_back(connection);
  }
  return connections;
}

std::shared_ptr<TcpConnectionState> TcpSockets::Find(uint64_t id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second;
}

bool TcpSockets::Move() {
  std::array<epoll_event, 16> events;
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    const std::shared_ptr<TcpConnectionState> connection = Find(events[i].data.u64);
    if (connection == nullptr) {
      continue;  // closed since
    }
    if ((events[i].events & ~EPOLLOUT) != 0) {
      connection->Receive();
    }
    connection->Send();  // also what was queued for it while it received
  }
  return count > 0;
}

void TcpSockets::MoveUnlessLent() {
  if (!move_mutex_.TryLock()) {
    return;
  }
  bool lent = false;
  {
    absl::MutexLock lock(&mutex_);
    lent = lent_;
  }
  if (!lent) {
    Move();
  }
  move_mutex_.Unlock();
}

bool TcpSockets::Enter() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = RealClock().Now();
    if (now - left_ > kMostAway) {
      GiveBack();
      return false;
    }
    entered_ = now;
    inside_ = true;
    if (!lent_) {
      lent_ = true;
      io_->Watch(*this, false);
      unwatched_ = true;
    }
  }
  move_mutex_.Lock();  // the I/O thread may be in the middle of a turn
  return true;
}

void TcpSockets::Leave() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  bool wake = false;
  bool borrowed = false;
  {
    absl::MutexLock lock(&mutex_);
    left_ = RealClock().Now();
    borrowed = std::exchange(inside_, false);
    wake = lent_ && std::exchange(unwatched_, false);
  }
  if (borrowed) {
    move_mutex_.Unlock();
  }
  if (wake) {
    io_->Wake();
  }
}

std::optional<absl::Duration> TcpSockets::TakeBack(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (!lent_ || unwatched_) {
    return std::nullopt;
  }
  if (inside_) {
    if (now - entered_ < kLongWait) {
      return kMostAway;
    }
    unwatched_ = true;
    return std::nullopt;
  }
  if (now - left_ < kMostAway) {
    return kMostAway - (now - left_);
  }
  GiveBack();
  return std::nullopt;
}

void TcpSockets::GiveBack() {
  if (std::exchange(lent_, false)) {
    unwatched_ = false;
    io_->Watch(*this, true);
  }
}

}  // namespace shoal::transport
