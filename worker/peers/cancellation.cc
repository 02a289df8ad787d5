#include "worker/peers/cancellation.h"

#include <utility>

#include "core/base/check.h"

namespace shoal::worker {

void Cancellation::Cancel(const absl::Status& why) {
  SHOAL_CHECK(!why.ok());
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) {
    return;
  }
  status_ = why;
  for (const Function& told : listeners_) {
    told(why);
  }
}

absl::Status Cancellation::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

Cancellation::Listener::Listener(Cancellation* cancellation, Function told)
    : cancellation_(cancellation) {
  absl::MutexLock lock(&cancellation_->mutex_);
  place_ = cancellation_->listeners_.insert(cancellation_->listeners_.end(), std::move(told));
  if (!cancellation_->status_.ok()) {
    (*place_)(cancellation_->status_);
  }
}

Cancellation::Listener::~Listener() {
  absl::MutexLock lock(&cancellation_->mutex_);
  cancellation_->listeners_.erase(place_);
}

}  // namespace shoal::worker
