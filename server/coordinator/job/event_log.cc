#include "server/coordinator/job/event_log.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/clock.h"

namespace shoal::server {

EventLog::EventLog(size_t capacity, size_t capacity_bytes, int64_t after)
    : capacity_(capacity), capacity_bytes_(capacity_bytes), last_(after) {}

// A job needs members, each with an incarnation of its own, and has fewer events than that for
// each.
std::shared_ptr<EventLog> EventLog::OfLife(int64_t issued) {
  constexpr int kEventBits = 24;
  return std::make_shared<EventLog>(kDefaultCapacity, kDefaultBytes, issued << kEventBits);
}

bool EndsJob(const proto::JobEvent& event) { return event.has_done() || event.has_failed(); }

void EventLog::Append(proto::JobEvent event) {
  absl::MutexLock lock(&mutex_);
  SHOAL_CHECK(events_.empty() || !EndsJob(events_.back()));
  event.set_number(++last_);
  bytes_ += event.ByteSizeLong();
  events_.push_back(std::move(event));
  DropBeyond(capacity_bytes_);
  changed_.SignalAll();
}

// The newest stays, whatever its size.
void EventLog::DropBeyond(size_t bytes) {
  while (events_.size() > 1 && (events_.size() > capacity_ || bytes_ > bytes)) {
    bytes_ -= events_.front().ByteSizeLong();
    events_.pop_front();
  }
}

void EventLog::Shrink(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  DropBeyond(bytes);
}

std::vector<proto::JobEvent> EventLog::Wait(int64_t after, absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  absl::MutexLock lock(&mutex_);
  while (last_ <= after && !closed_) {
    if (changed_.Wait(&mutex_, deadline - RealClock().Now())) {
      break;
    }
  }
  return Collect(after);
}

std::vector<proto::JobEvent> EventLog::After(int64_t after) const {
  absl::MutexLock lock(&mutex_);
  return Collect(after);
}

void EventLog::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  changed_.SignalAll();
}

bool EventLog::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

std::vector<proto::JobEvent> EventLog::Collect(int64_t after) const {
  const int64_t first = last_ - static_cast<int64_t>(events_.size()) + 1;
  const int64_t skip =
      std::clamp<int64_t>(after + 1 - first, 0, static_cast<int64_t>(events_.size()));
  return {events_.begin() + skip, events_.end()};
}

}  // namespace shoal::server
