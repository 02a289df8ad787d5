// Sleeps on an eventfd such that notifying costs no system call while nobody sleeps.
//
// The sleeper announces itself in a flag, looks for work once more, and sleeps; a notifier
// publishes its work, then looks at the flag. Sequentially consistent fences on both sides ensure
// that at least one sees the other. The flag may lie in memory that other processes read; they
// notify through the same functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/file.h"
#include "core/transport/adaptive_spin.h"

namespace shoal::transport {

// Call after publishing the work. Only reads `flag`.
void NotifySleeper(const uint32_t* flag, int event_fd);

class Sleeper {
 public:
  // `flag` must outlive the sleeper; null for a flag of its own. `spin` as in TransportOptions.
  static absl::StatusOr<std::unique_ptr<Sleeper>> Create(uint32_t* flag, absl::Duration spin);

  void Notify() { NotifySleeper(flag_, event_fd_.get()); }
  int event_fd() const { return event_fd_.get(); }

  // What a look for work saw.
  enum class Seen { kNothing, kProgress, kWork };

  // Returns true as soon as look() sees work, false when the time is up. Progress restarts the
  // polling phase. A readable `other_fd` (-1: none) also ends a sleep, to look again. For one
  // thread at a time.
  template <typename Look>
  bool Wait(absl::Duration timeout, const Look& look, int other_fd = -1) {
    Seen seen = look();
    if (seen == Seen::kWork || timeout <= absl::ZeroDuration()) {
      return seen == Seen::kWork;
    }
    absl::Time now = Now();
    const absl::Time deadline = now + timeout;
    absl::Time idle_since = now;
    while (seen != Seen::kWork && now < deadline) {
      if (seen == Seen::kProgress) {
        spin_.Found(now - idle_since);
        idle_since = now;
        seen = look();
      } else if (now - idle_since < spin_.budget()) {
        Yield();
        seen = look();
      } else {
        Announce();
        seen = look();
        if (seen == Seen::kNothing) {
          Sleep(deadline - now, other_fd);
          seen = look();
        }
        Withdraw();
      }
      now = Now();
    }
    if (seen == Seen::kWork) {
      spin_.Found(now - idle_since);
    } else {
      spin_.FoundNothing();
    }
    return seen == Seen::kWork;
  }

 private:
  Sleeper(uint32_t* flag, UniqueFd event_fd, absl::Duration spin);
  static absl::Time Now();
  static void Yield();
  void Announce();
  void Sleep(absl::Duration time, int other_fd);
  void Withdraw();

  uint32_t own_flag_ = 0;
  uint32_t* const flag_;
  const UniqueFd event_fd_;
  AdaptiveSpin spin_;  // the waiting thread's
};

}  // namespace shoal::transport
