// A device that computes nothing and takes its time: operations run one after the other on a clock
// of the device's own, and the host waits until they would be done. It never spins, so many devices
// fit on a small machine.
//
// A host that sleeps wakes up late, by tens of microseconds on a quiet machine and more on a busy
// one. A real device would not have waited for it: its next operation is queued already. So the
// device's clock goes on from the end of the operation before, plus what the host itself spent
// between two operations (waiting for weights, say), and lateness in waking up is made good by the
// next sleep. One thread.
#pragma once

#include "absl/time/time.h"
#include "core/base/clock.h"

namespace shoal::worker {

class EmulatedDevice {
 public:
  explicit EmulatedDevice(Clock& clock) : clock_(clock) {}

  // The device is idle, and its clock is the host's.
  void Reset();
  // Returns when an operation of that length would be done.
  void Run(absl::Duration length);

 private:
  Clock& clock_;
  absl::Time done_;   // by the device's clock: the last operation
  absl::Time awake_;  // by the host's: when it came back from waiting for that
};

}  // namespace shoal::worker
