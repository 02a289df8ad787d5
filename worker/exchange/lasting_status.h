// Why nothing goes on any more, once there is a reason: the first one stays for good. Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace shoal::worker {

class LastingStatus {
 public:
  // `why` stays where it is not OK and the first. What stays, OK where nothing does.
  absl::Status Update(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    status_.Update(why);
    return status_;
  }
  absl::Status Get() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::worker
