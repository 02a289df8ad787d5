#include "server/coordinator/record/event_log.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/testing/planted.h"

namespace shoal::server {

EventLog::EventLog(std::vector<proto::JobEvent> saved, int64_t term, Save save, size_t capacity,
                   size_t capacity_bytes)
    : term_(term),
      save_(std::move(save)),
      capacity_(capacity),
      capacity_bytes_(capacity_bytes),
      events_(saved.begin(), saved.end()),
      last_(saved.empty() ? 0 : saved.back().number()) {
  for (const proto::JobEvent& event : events_) {
    bytes_ += event.ByteSizeLong();
  }
}

bool EndsJob(const proto::JobEvent& event) { return event.has_done() || event.has_failed(); }

bool RepeatsStep(const proto::JobEvent& earlier, const proto::JobEvent& event) {
  return earlier.has_step() && event.has_step() && event.term() > earlier.term() &&
         event.step().step() == earlier.step().step() &&
         event.step().loss() == earlier.step().loss() &&
         event.step().grad_norm() == earlier.step().grad_norm();
}

int64_t EventLog::NewAfter(int64_t after, int64_t term) const {
  if (term >= term_) {
    return after;
  }
  absl::MutexLock lock(&mutex_);
  if (SHOAL_PLANTED("event-by-number")) {
    return std::min(after, last_);
  }
  const auto later = std::ranges::upper_bound(events_, term, {}, &proto::JobEvent::term);
  return std::min(after, later == events_.end() ? last_ : later->number() - 1);
}

int64_t EventLog::Append(std::vector<proto::JobEvent> events, bool outlive) {
  absl::MutexLock lock(&mutex_);
  SHOAL_CHECK(events_.empty() || !EndsJob(events_.back()));
  // The last one's number is kept, so that no later life gives any of these again.
  SHOAL_CHECK(!events.empty() && !events.back().has_trace());
  for (proto::JobEvent& event : events) {
    if (SHOAL_PLANTED("event-lost") && !event.checkpoint().error().empty()) {
      ++last_;
    }
    event.set_number(++last_);
    event.set_term(term_);
    if (save_ && outlive && !event.has_trace()) {
      save_(event);
    }
  }
  for (proto::JobEvent& event : events) {
    bytes_ += event.ByteSizeLong();
    events_.push_back(std::move(event));
  }
  DropBeyond(capacity_bytes_);
  changed_.SignalAll();
  return last_;
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
  return {std::ranges::upper_bound(events_, after, {}, &proto::JobEvent::number), events_.end()};
}

}  // namespace shoal::server
