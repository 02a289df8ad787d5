// That a worker is to end: told once, and heard by whatever may be waiting then, also while its job
// is still being made and nobody has it yet.
//
// The trainer has one for its job. Thread-safe.
#pragma once

#include <functional>
#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace shoal::worker {

class Cancellation {
 public:
  using Function = std::function<void(const absl::Status& why)>;

  // `why` is not OK. The first call counts; it returns when all that listen have been told.
  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Why; OK until then.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // While it exists `told` is called once, by whoever cancels, or here where that has happened
  // already. It runs under a lock: it must not come back to the cancellation.
  class Listener {
   public:
    Listener(Cancellation* cancellation, Function told);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

   private:
    Cancellation* const cancellation_;
    std::list<Function>::iterator place_;
  };

 private:
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::list<Function> listeners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::worker
