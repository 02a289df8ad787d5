// Sleeping on an eventfd such that notifying costs no system call while nobody sleeps.
//
// The sleeper announces itself in a flag, looks for work once more, and sleeps; a notifier
// publishes its work, then looks at the flag. Sequentially consistent fences on both sides exclude
// that each misses the other. The flag may lie in memory that other processes read, who then notify
// through the same functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/file.h"
#include "transport/adaptive_spin.h"

namespace shoal::transport {

// Call after the work has been published. `flag` is only read.
void NotifySleeper(const uint32_t* flag, int event_fd);

class Sleeper {
 public:
  // `flag` must live as long as the sleeper; null for a flag of its own. `spin` as in
  // TransportOptions.
  static absl::StatusOr<std::unique_ptr<Sleeper>> Create(uint32_t* flag, absl::Duration spin);

  void Notify() { NotifySleeper(flag_, event_fd_.get()); }
  int event_fd() const { return event_fd_.get(); }

  // Returns true as soon as has_work() does, false when the time is up. One thread at a time.
  template <typename HasWork>
  bool Wait(absl::Duration timeout, const HasWork& has_work) {
    if (has_work()) {
      return true;
    }
    if (timeout <= absl::ZeroDuration()) {
      return false;
    }
    const Deadline deadline(timeout);
    bool found = false;
    for (const Deadline looking(std::min(spin_.budget(), timeout)); !found && !looking.Passed();) {
      Yield();
      found = has_work();
    }
    while (!found) {
      Announce();
      found = has_work() || (Sleep(deadline), has_work());
      Withdraw();
      if (deadline.Passed()) {
        break;
      }
    }
    if (found) {
      spin_.Found(deadline.Elapsed());
    } else {
      spin_.FoundNothing();
    }
    return found;
  }

 private:
  class Deadline {
   public:
    explicit Deadline(absl::Duration from_now);
    bool Passed() const { return Left() <= absl::ZeroDuration(); }
    absl::Duration Left() const;
    absl::Duration Elapsed() const;  // since it was made

   private:
    const absl::Time start_;
    const absl::Time at_;
  };

  Sleeper(uint32_t* flag, UniqueFd event_fd, absl::Duration spin);
  static void Yield();
  void Announce();
  void Sleep(const Deadline& deadline);
  void Withdraw();

  uint32_t own_flag_ = 0;
  uint32_t* const flag_;
  const UniqueFd event_fd_;
  AdaptiveSpin spin_;  // the waiting thread's
};

}  // namespace shoal::transport
