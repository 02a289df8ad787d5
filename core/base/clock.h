// Time is injected: services take a Clock&; tests and simulations pass a ManualClock and advance it
// by hand.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace shoal {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  virtual void SleepFor(absl::Duration duration) = 0;
};

// Returns the machine's clock; monotonic within a process: wall time at start plus steady time
// since.
Clock& RealClock();

// Returns what the machine's clock shows to people: for names, records and logs. It may jump.
absl::Time WallTime();

// Stands still until advanced. Thread-safe. SleepFor waits until the clock has been advanced far
// enough.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(absl::Time start = absl::UnixEpoch()) : now_(start) {}
  absl::Time Now() const override;
  void SleepFor(absl::Duration duration) override;
  void Advance(absl::Duration duration);

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal
