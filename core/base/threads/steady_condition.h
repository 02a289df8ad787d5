// A condition variable for absl::Mutex that measures time by the steady clock: absl::CondVar waits
// by the wall clock, so setting that back prolongs its waits.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace shoal {

class SteadyCondition {
 public:
  // Returns with `mutex` held, once it is signalled or `limit` is over (true).
  bool Wait(absl::Mutex* mutex, absl::Duration limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    // Not more than chrono can add to its clock.
    constexpr absl::Duration kLongest = absl::Hours(24 * 365);
    Lockable lockable{mutex};
    return condition_.wait_for(lockable, absl::ToChronoNanoseconds(std::min(limit, kLongest))) ==
           std::cv_status::timeout;
  }
  void SignalAll() { condition_.notify_all(); }

 private:
  // The interface that std::condition_variable_any requires.
  struct Lockable {
    absl::Mutex* const mutex;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex->Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex->Unlock(); }
  };
  std::condition_variable_any condition_;
};

}  // namespace shoal
