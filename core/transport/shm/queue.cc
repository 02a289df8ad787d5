#include "core/transport/shm/queue.h"

#include <algorithm>

#include "core/base/status.h"
#include "core/transport/shm/connection.h"
#include "core/transport/shm/handshake.h"

namespace shoal::transport {

absl::StatusOr<std::unique_ptr<ShmQueue>> ShmQueue::Create(absl::Duration spin) {
  auto wake = std::make_shared<ShmQueueWake>();
  SHOAL_ASSIGN_OR_RETURN(wake->page,
                         SharedMemory::Create(kQueuePageBytes, /*peers_read_only=*/true));
  SHOAL_ASSIGN_OR_RETURN(wake->sleeper,
                         Sleeper::Create(reinterpret_cast<uint32_t*>(wake->page.data()), spin));
  return std::unique_ptr<ShmQueue>(new ShmQueue(std::move(wake)));
}

void ShmQueue::Add(std::shared_ptr<ShmConnectionState> connection) {
  absl::MutexLock lock(&mutex_);
  connections_.push_back(std::move(connection));
}

void ShmQueue::Push(std::span<PendingEvent> events) {
  buffer_.Push(events);
  wake_->sleeper->Notify();
}

size_t ShmQueue::Poll(std::span<Event> events) {
  absl::MutexLock lock(&mutex_);
  size_t count = buffer_.Poll(events);
  for (size_t visited = 0, n = connections_.size(); visited < n && count < events.size();
       ++visited) {
    next_ = next_ % connections_.size();
    ShmConnectionState& connection = *connections_[next_];
    count += connection.TakeDoorbells(events.subspan(count));
    // Completions were pushed before the connection reported that it was finished, so an empty
    // buffer means that all have been delivered.
    if (count < events.size() && connection.finished() && !connection.HasDoorbells() &&
        buffer_.empty()) {
      events[count++] = connection.ClosedEvent();
      connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(next_));
    } else {
      ++next_;
    }
  }
  return count;
}

bool ShmQueue::HasWork() {
  if (wake_requested_.exchange(false) || !buffer_.empty()) {
    return true;
  }
  absl::MutexLock lock(&mutex_);
  return std::any_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return connection->HasDoorbells() || connection->finished();
  });
}

bool ShmQueue::Wait(absl::Duration timeout) {
  return wake_->sleeper->Wait(
      timeout, [this] { return HasWork() ? Sleeper::Seen::kWork : Sleeper::Seen::kNothing; });
}

void ShmQueue::Wake() {
  wake_requested_.store(true);
  wake_->sleeper->Notify();
}

}  // namespace shoal::transport
