// Events of the CPU device. Only worker/backend/cpu includes it.
#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/threads/steady_await.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

// Shared by the event and by the streams that refer to it.
class CpuEventState {
 public:
  void Set(absl::Status status, absl::Time at) {
    absl::MutexLock lock(&mutex_);
    done_ = true;
    status_ = std::move(status);
    at_ = at;
  }
  bool WaitDone(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    return AwaitFor(&mutex_, absl::Condition(&done_), timeout);
  }
  absl::Status Wait() const {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
    return status_;
  }
  absl::Time at() const {
    absl::MutexLock lock(&mutex_);
    return at_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Time at_ ABSL_GUARDED_BY(mutex_);
};

class CpuEvent final : public Event {
 public:
  explicit CpuEvent(std::shared_ptr<const CpuEventState> state) : state_(std::move(state)) {}
  bool WaitDone(absl::Duration timeout) override { return state_->WaitDone(timeout); }
  absl::Status Wait() override { return state_->Wait(); }
  absl::Time at() const override { return state_->at(); }

  const std::shared_ptr<const CpuEventState>& state() const { return state_; }

 private:
  const std::shared_ptr<const CpuEventState> state_;
};

}  // namespace shoal::worker
