#include "core/transport/testing/fault_queue.h"

#include <algorithm>
#include <array>

namespace shoal::transport {
namespace {

// Beyond this many it stops polling the inner queue, so that its bounds take effect.
constexpr size_t kMaxHeld = 16384;

}  // namespace

void FaultQueue::Track(uint64_t connection, std::shared_ptr<OutstandingOperations> outstanding) {
  absl::MutexLock lock(&mutex_);
  connections_[connection].outstanding = std::move(outstanding);
}

void FaultQueue::Pace(uint64_t connection, Event::Kind kind, int64_t bytes) {
  if (options_.bytes_per_second <= 0) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  ConnectionEvents& events = connections_[connection];
  events.busy_until =
      std::max(events.busy_until, options_.clock->Now()) +
      absl::Seconds(static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second));
  (kind == Event::Kind::kReadDone ? events.reads : events.writes)
      .paced.push_back(events.busy_until);
}

void FaultQueue::Break(uint64_t connection, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  connections_[connection].broken = why;
}

void FaultQueue::Hold(Event event) {
  ConnectionEvents& connection = connections_[event.connection];
  if (connection.broken.has_value() && absl::IsCancelled(event.status)) {
    event.status = *connection.broken;
  }
  if (event.kind == Event::Kind::kClosed) {
    connection.closed = std::move(event);
    ++held_;
    return;
  }
  absl::Time release = absl::InfinitePast();
  if (random_.Uniform() < options_.delay_probability) {
    release = options_.clock->Now() + options_.max_delay * random_.Uniform();
  }
  HeldQueue* queue = &connection.doorbells;
  if (event.kind == Event::Kind::kDoorbell) {
    if (random_.Uniform() < options_.drop_doorbell_probability) {
      return;
    }
    // Drawn only if asked for, so that other faults stay the same for the same seed.
    if (options_.repeat_doorbell_probability > 0 &&
        random_.Uniform() < options_.repeat_doorbell_probability) {
      queue->held.push_back({event, release});
      ++held_;
    }
  } else {
    queue = event.kind == Event::Kind::kReadDone ? &connection.reads : &connection.writes;
    if (!queue->paced.empty()) {
      release = std::max(release, queue->paced.front());
      queue->paced.pop_front();
    }
  }
  queue->held.push_back({std::move(event), release});
  ++held_;
}

void FaultQueue::Drain() {
  std::array<Event, 64> events;
  while (held_ < kMaxHeld) {
    const size_t count = inner_->Poll(events);
    for (size_t i = 0; i < count; ++i) {
      Hold(std::move(events[i]));
    }
    if (count < events.size()) {
      return;
    }
  }
}

bool FaultQueue::Release(ConnectionEvents& connection, HeldQueue& queue, bool any_order,
                         Event& event) {
  if (queue.held.empty()) {
    return false;
  }
  auto it = queue.held.begin();
  if (any_order) {
    it += static_cast<ptrdiff_t>(random_.Below(queue.held.size()));
  }
  if (it->release > options_.clock->Now()) {
    return false;
  }
  event = std::move(it->event);
  queue.held.erase(it);
  if (event.kind != Event::Kind::kDoorbell && connection.outstanding != nullptr) {
    connection.outstanding->Polled(event.kind);
  }
  return true;
}

bool FaultQueue::ReleaseNext(ConnectionEvents& connection, Event& event) {
  std::array<HeldQueue*, 3> queues = {&connection.reads, &connection.writes, &connection.doorbells};
  const size_t first = options_.reorder ? random_.Below(queues.size()) : 0;
  for (size_t i = 0; i < queues.size(); ++i) {
    HeldQueue* queue = queues[(first + i) % queues.size()];
    if (Release(connection, *queue, options_.reorder && queue == &connection.reads, event)) {
      return true;
    }
  }
  return false;
}

size_t FaultQueue::Poll(std::span<Event> events) {
  absl::MutexLock lock(&mutex_);
  Drain();
  size_t count = 0;
  auto it = connections_.begin();
  if (options_.reorder && !connections_.empty()) {
    std::advance(it, static_cast<ptrdiff_t>(random_.Below(connections_.size())));
  }
  for (size_t visits = connections_.size(); visits > 0 && count < events.size(); --visits) {
    if (it == connections_.end()) {
      it = connections_.begin();
    }
    ConnectionEvents& connection = it->second;
    while (count < events.size() && ReleaseNext(connection, events[count])) {
      ++count;
      --held_;
    }
    if (count < events.size() && connection.idle() && connection.closed.has_value()) {
      events[count++] = *std::move(connection.closed);
      --held_;
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
  return count;
}

absl::Time FaultQueue::NextRelease() {
  absl::MutexLock lock(&mutex_);
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, connection] : connections_) {
    for (const HeldQueue* queue : {&connection.reads, &connection.writes, &connection.doorbells}) {
      for (const Held& held : queue->held) {
        next = std::min(next, held.release);
        if (!options_.reorder) {
          break;  // later ones wait for it
        }
      }
    }
    if (connection.idle() && connection.closed.has_value()) {
      return absl::InfinitePast();
    }
  }
  return next;
}

bool FaultQueue::Wait(absl::Duration timeout) {
  const absl::Duration until_release = NextRelease() - options_.clock->Now();
  if (until_release <= absl::ZeroDuration()) {
    return true;
  }
  const bool woken = inner_->Wait(std::min(timeout, until_release));
  return woken || until_release <= timeout;
}

}  // namespace shoal::transport
