#include "core/transport/sleeper.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

std::atomic_ref<uint32_t> Flag(uint32_t* flag) { return std::atomic_ref<uint32_t>(*flag); }

// Returns whether a read (POLLIN) or write (POLLOUT) would not block. EFD_NONBLOCK does not ensure
// that: it belongs to the open file, which a peer shares and may set otherwise.
bool IsReady(int event_fd, int16_t events) {
  pollfd poll_fd = {.fd = event_fd, .events = events, .revents = 0};
  return poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & events) != 0;
}

}  // namespace

void NotifySleeper(const uint32_t* flag, int event_fd) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // A lock-free load does not write, so a read-only mapping suffices.
  if (Flag(const_cast<uint32_t*>(flag)).load(std::memory_order_seq_cst) != 0) {
    if (!IsReady(event_fd, POLLOUT)) {
      return;  // the counter is full: the sleeper is awake already
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(event_fd, &one, sizeof one);
  }
}

absl::StatusOr<std::unique_ptr<Sleeper>> Sleeper::Create(uint32_t* flag, absl::Duration spin) {
  UniqueFd event_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_fd.valid()) {
    return ErrnoToStatus(errno, "making an eventfd for an event queue");
  }
  return std::unique_ptr<Sleeper>(new Sleeper(flag, std::move(event_fd), spin));
}

Sleeper::Sleeper(uint32_t* flag, UniqueFd event_fd, absl::Duration spin)
    : flag_(flag != nullptr ? flag : &own_flag_),
      event_fd_(std::move(event_fd)),
      spin_(kSpinRange * spin) {}

absl::Time Sleeper::Now() { return RealClock().Now(); }

void Sleeper::Yield() { sched_yield(); }

void Sleeper::Announce() {
  Flag(flag_).store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Sleeper::Withdraw() {
  Flag(flag_).store(0, std::memory_order_seq_cst);
  if (!IsReady(event_fd_.get(), POLLIN)) {
    return;  // nobody notified
  }
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = read(event_fd_.get(), &count, sizeof count);
}

void Sleeper::Sleep(absl::Duration time, int other_fd) {
  // poll ignores a negative descriptor.
  pollfd poll_fds[] = {{.fd = event_fd_.get(), .events = POLLIN, .revents = 0},
                       {.fd = other_fd, .events = POLLIN, .revents = 0}};
  const timespec left = absl::ToTimespec(time);
  ppoll(poll_fds, 2, &left, nullptr);  // EINTR: the caller looks and sleeps again
}

}  // namespace shoal::transport
