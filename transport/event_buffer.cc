#include "transport/event_buffer.h"

namespace shoal::transport {

uint64_t NextConnectionId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

size_t EventBuffer::Poll(std::span<Event> events) {
  absl::MutexLock lock(&mutex_);
  size_t count = 0;
  while (count < events.size() && !events_.empty()) {
    PendingEvent& next = events_.front();
    if (next.outstanding != nullptr) {
      next.outstanding->GiveBack(next.event.kind);
    }
    events[count++] = std::move(next.event);
    events_.pop_front();
  }
  return count;
}

}  // namespace shoal::transport
