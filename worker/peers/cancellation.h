// Tells all that wait that the worker must end, once, also while its job is still being made. The
// trainer has one for its job. Thread-safe.
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

  // `why` is not OK. The first call counts; it returns when all listeners have been told.
  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Why; OK until then.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // While it exists, Cancel calls `told` once; the constructor does if that has happened already.
  // `told` runs under a lock and must not use the cancellation.
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
