#include "core/transport/event_buffer.h"

#include "absl/container/inlined_vector.h"

namespace shoal::transport {

uint64_t NextConnectionId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void EventBuffer::Close() {
  // destroyed after the lock is released: a listener's destructor may need it
  std::deque<PendingEvent> forgotten;
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  forgotten.swap(events_);
}

size_t EventBuffer::Poll(std::span<Event> events) {
  absl::InlinedVector<std::shared_ptr<PollListener>, 64> listeners;
  size_t count = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (; count < events.size() && !events_.empty(); ++count) {
      listeners.push_back(std::move(events_.front().listener));
      events[count] = std::move(events_.front().event);
      events_.pop_front();
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (listeners[i] != nullptr) {
      listeners[i]->Polled(events[i].kind);
    }
  }
  return count;
}

}  // namespace shoal::transport
