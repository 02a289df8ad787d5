#include "transport/tcp/tcp_io_thread.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "transport/tcp/tcp_connection.h"

namespace shoal::transport {
namespace {

constexpr uint64_t kWakeToken = 0;  // connection ids are never 0

int Control(int epoll, int operation, int socket, uint64_t id, uint32_t interest) {
  epoll_event event = {};
  event.events = interest;
  event.data.u64 = id;
  return epoll_ctl(epoll, operation, socket, &event);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpIoThread>> TcpIoThread::Start(absl::Duration keep_alive,
                                                                absl::Duration spin) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid() ||
      Control(epoll.get(), EPOLL_CTL_ADD, wake.get(), kWakeToken, EPOLLIN) != 0) {
    return ErrnoToStatus(errno, "starting a tcp I/O thread");
  }
  std::unique_ptr<TcpIoThread> io(
      new TcpIoThread(std::move(epoll), std::move(wake), keep_alive, spin));
  io->thread_ = std::thread([raw = io.get()] { raw->Run(); });
  return io;
}

TcpIoThread::TcpIoThread(UniqueFd epoll, UniqueFd wake, absl::Duration keep_alive,
                         absl::Duration spin)
    : epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      tick_(std::max(keep_alive / kTicksPerKeepAlive, absl::Milliseconds(1))),
      spin_(kSpinRange * spin) {}

TcpIoThread::~TcpIoThread() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  thread_.join();
}

bool TcpIoThread::Add(uint64_t id, int socket, std::shared_ptr<TcpConnectionState> connection) {
  {
    absl::MutexLock lock(&mutex_);
    connections_[id] = std::move(connection);
  }
  return Control(epoll_.get(), EPOLL_CTL_ADD, socket, id, EPOLLIN) == 0;
}

void TcpIoThread::Remove(uint64_t id, int socket) {
  Control(epoll_.get(), EPOLL_CTL_DEL, socket, id, 0);
  absl::MutexLock lock(&mutex_);
  connections_.erase(id);
}

void TcpIoThread::AwaitWritable(uint64_t id, int socket, bool wanted) {
  Control(epoll_.get(), EPOLL_CTL_MOD, socket, id, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

bool TcpIoThread::Serve(const epoll_event& event) {
  std::shared_ptr<TcpConnectionState> connection;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) {
      return true;
    }
    auto it = connections_.find(event.data.u64);
    if (it == connections_.end()) {
      return false;  // the wake-up, or closed since
    }
    connection = it->second;
  }
  if ((event.events & ~EPOLLOUT) != 0) {
    connection->Receive();
  }
  connection->Send();  // also what was left to it while it received
  return false;
}

void TcpIoThread::Run() {
  std::array<epoll_event, 64> events;
  absl::Time now = RealClock().Now();
  absl::Time next_tick = now + tick_;
  absl::Time idle_since = now;
  for (;;) {
    const bool spinning = now - idle_since < spin_.budget();
    const int64_t left_ms = spinning ? 0 : absl::ToInt64Milliseconds(next_tick - now) + 1;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(),
                                 static_cast<int>(std::clamp<int64_t>(left_ms, 0, 60000)));
    if (count > 0) {
      spin_.Found(RealClock().Now() - idle_since);
    } else if (spinning) {
      sched_yield();
    }
    for (int i = 0; i < count; ++i) {
      if (Serve(events[i])) {
        return;
      }
    }
    now = RealClock().Now();
    if (count > 0) {
      idle_since = now;
    }
    if (now >= next_tick) {
      Tick();
      next_tick = now + tick_;
    }
  }
}

void TcpIoThread::Tick() {
  std::vector<std::shared_ptr<TcpConnectionState>> connections;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, connection] : connections_) {
      connections.push_back(connection);
    }
  }
  for (const auto& connection : connections) {
    connection->Tick();
  }
}

}  // namespace shoal::transport
