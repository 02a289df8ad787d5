// Keeps a worker's lease: renews it every third of its length on a thread of its own, and says so,
// once, when it is over: the coordinator told the worker to leave, does not know it any more, or
// could not be reached for as long as the lease lasts.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "worker/trainer/coordinator_port.h"

namespace shoal::worker {

class LeaseKeeper {
 public:
  // `on_end` gets OK when told to leave, else why the lease is lost; it is called on the keeper's
  // thread and must not destroy it.
  LeaseKeeper(CoordinatorPort* coordinator, uint64_t incarnation, absl::Duration lease,
              std::function<void(const absl::Status&)> on_end, Clock& clock);
  ~LeaseKeeper();  // stops renewing

 private:
  void Run();
  // True when there is nothing more to renew.
  bool Renew();

  CoordinatorPort* const coordinator_;
  const uint64_t incarnation_;
  const absl::Duration lease_;
  const std::function<void(const absl::Status&)> on_end_;
  Clock& clock_;
  absl::Time valid_until_;  // the thread's own
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::worker
