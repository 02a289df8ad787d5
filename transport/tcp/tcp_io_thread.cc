#include "transport/tcp/tcp_io_thread.h"

#include <sys/epoll.h>
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

absl::StatusOr<std::unique_ptr<TcpIoThread>> TcpIoThread::Start(absl::Duration keep_alive) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid() ||
      Control(epoll.get(), EPOLL_CTL_ADD, wake.get(), kWakeToken, EPOLLIN) != 0) {
    return ErrnoToStatus(errno, "starting a tcp I/O thread");
  }
  std::unique_ptr<TcpIoThread> io(new TcpIoThread(std::move(epoll), std::move(wake), keep_alive));
  io->thread_ = std::thread([raw = io.get()] { raw->Run(); });
  return io;
}

TcpIoThread::TcpIoThread(UniqueFd epoll, UniqueFd wake, absl::Duration keep_alive)
    : epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      tick_(std::max(keep_alive / kTicksPerKeepAlive, absl::Milliseconds(1))) {}

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

void TcpIoThread::Run() {
  std::array<epoll_event, 64> events;
  absl::Time next_tick = RealClock().Now() + tick_;
  for (;;) {
    const int64_t left_ms = absl::ToInt64Milliseconds(next_tick - RealClock().Now()) + 1;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(),
                                 static_cast<int>(std::clamp<int64_t>(left_ms, 0, 60000)));
    for (int i = 0; i < count; ++i) {
      std::shared_ptr<TcpConnectionState> connection;
      {
        absl::MutexLock lock(&mutex_);
        if (stopping_) {
          return;
        }
        auto it = connections_.find(events[i].data.u64);
        if (it == connections_.end()) {
          continue;  // the wake-up, or closed since
        }
        connection = it->second;
      }
      if ((events[i].events & ~EPOLLOUT) != 0) {
        connection->Receive();
      }
      connection->Send();
    }
    if (RealClock().Now() >= next_tick) {
      Tick();
      next_tick = RealClock().Now() + tick_;
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
