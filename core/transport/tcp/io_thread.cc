#include "core/transport/tcp/io_thread.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/tcp/connection.h"

namespace shoal::transport {
namespace {

int Control(int epoll, int operation, int fd, uint32_t interest) {
  epoll_event event = {};
  event.events = interest;
  event.data.fd = fd;
  return epoll_ctl(epoll, operation, fd, &event);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpIoThread>> TcpIoThread::Start(absl::Duration keep_alive,
                                                                absl::Duration spin) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid() ||
      Control(epoll.get(), EPOLL_CTL_ADD, wake.get(), EPOLLIN) != 0) {
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
  Wake();
  thread_.join();
}

bool TcpIoThread::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

void TcpIoThread::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

absl::Status TcpIoThread::LookAfter(std::shared_ptr<TcpSockets> sockets) {
  const int fd = sockets->fd();
  {
    absl::MutexLock lock(&mutex_);
    sockets_[fd] = std::move(sockets);
  }
  if (Control(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN) != 0) {
    const int error = errno;
    absl::MutexLock lock(&mutex_);
    sockets_.erase(fd);
    return ErrnoToStatus(error, "a tcp event queue");
  }
  return absl::OkStatus();
}

void TcpIoThread::Forget(const TcpSockets& sockets) {
  Control(epoll_.get(), EPOLL_CTL_DEL, sockets.fd(), 0);
  absl::MutexLock lock(&mutex_);
  sockets_.erase(sockets.fd());
}

void TcpIoThread::Watch(const TcpSockets& sockets, bool wanted) {
  Control(epoll_.get(), EPOLL_CTL_MOD, sockets.fd(), wanted ? EPOLLIN : 0u);
}

std::vector<std::shared_ptr<TcpSockets>> TcpIoThread::All() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<TcpSockets>> all;
  for (const auto& [fd, sockets] : sockets_) {
    all.push_back(sockets);
  }
  return all;
}

void TcpIoThread::Serve(const epoll_event& event) {
  if (event.data.fd == wake_.get()) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained = read(wake_.get(), &count, sizeof count);
    return;
  }
  std::shared_ptr<TcpSockets> sockets;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = sockets_.find(event.data.fd);
    if (found == sockets_.end()) {
      return;
    }
    sockets = found->second;
  }
  sockets->MoveUnlessLent();
}

int TcpIoThread::Await(absl::Duration timeout, std::array<epoll_event, 16>& events) {
  // epoll_wait counts milliseconds.
  const int milliseconds = static_cast<int>(absl::ToInt64Milliseconds(timeout));
  if (milliseconds == 0 && timeout > absl::ZeroDuration()) {
    pollfd poll_fd = {.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    const timespec time = absl::ToTimespec(timeout);
    if (ppoll(&poll_fd, 1, &time, nullptr) <= 0) {
      return 0;
    }
  }
  return epoll_wait(epoll_.get(), events.data(), events.size(), milliseconds);
}

void TcpIoThread::Run() {
  std::array<epoll_event, 16> events;
  absl::Time now = RealClock().Now();
  absl::Time next_tick = now + tick_;
  absl::Time idle_since = now;
  while (!stopping()) {
    const absl::Duration look = TakeBack(now);
    const bool spinning = now - idle_since < spin_.budget();
    const int count = Await(spinning ? absl::ZeroDuration()
                                     : std::clamp(std::min(look, next_tick - now),
                                                  absl::ZeroDuration(), absl::Minutes(1)),
                            events);
    if (count > 0) {
      spin_.Found(RealClock().Now() - idle_since);
    } else if (spinning) {
      sched_yield();
    }
    for (int i = 0; i < count; ++i) {
      Serve(events[static_cast<size_t>(i)]);
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

absl::Duration TcpIoThread::TakeBack(absl::Time now) {
  absl::Duration next = absl::InfiniteDuration();
  for (const auto& sockets : All()) {
    next = std::min(next, sockets->TakeBack(now).value_or(absl::InfiniteDuration()));
  }
  return next;
}

void TcpIoThread::Tick() {
  for (const auto& sockets : All()) {
    for (const auto& connection : sockets->connections()) {
      connection->Tick();
    }
  }
}

}  // namespace shoal::transport
