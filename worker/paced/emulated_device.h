// A device that computes nothing and takes its time: operations run one after the other on the
// device's own clock, and the host waits until they would be done. It never spins, so many devices
// fit on a small machine.
//
// A host that sleeps wakes up late, by tens of microseconds on a quiet machine and more on a busy
// one. A real device would not have waited for it: its next operation is queued already. So the
// device's clock continues from the end of the previous operation, plus what the host itself spent
// between two operations (waiting for weights, say), and the next sleep makes up for a late
// wake-up. For one thread.
#pragma once

#include "absl/time/time.h"
#include "core/base/clock.h"

namespace shoal::worker {

class EmulatedDevice {
 public:
  explicit EmulatedDevice(Clock& clock) : clock_(clock) {}

  // Makes the device idle, and sets its clock to the host's.
  void Reset();
  // Returns when an operation of that length would be done.
  void Run(absl::Duration length);

 private:
  Clock& clock_;
  absl::Time done_;   // by the device's clock: end of the last operation
  absl::Time awake_;  // by the host's clock: when it returned from waiting for it
};

}  // namespace shoal::worker
