// The bounded queue of events between a transport's threads and the thread that polls; all
// transports use it. Thread-safe.
//
// What bounds it:
// - OutstandingOperations counts an operation when it is posted and releases it only when its
//   completion is polled.
// - Transports limit doorbells by kMaxWaitingDoorbells.
// - kClosed comes once per connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/transport.h"

namespace shoal::transport {

// Unique within the process, never 0.
uint64_t NextConnectionId();

// Called when an event has been polled, which frees what the event counted against a bound.
class PollListener {
 public:
  virtual ~PollListener() = default;
  virtual void Polled(Event::Kind kind) = 0;
};

// Counts the operations of one connection from post to poll.
class OutstandingOperations final : public PollListener {
 public:
  explicit OutstandingOperations(int64_t limit) : limit_(limit) {}
  // Takes all or none. Only one thread posts at a time, so check and add need not be one atomic
  // step.
  bool TakeReads(size_t count) { return Take(reads_, count); }
  bool TakeWrites(size_t count) { return Take(writes_, count); }
  void Polled(Event::Kind kind) override {
    (kind == Event::Kind::kReadDone ? reads_ : writes_).fetch_sub(1, std::memory_order_release);
  }
  int64_t limit() const { return limit_; }

 private:
  bool Take(std::atomic<int64_t>& taken, size_t count) {
    if (count > static_cast<uint64_t>(limit_ - taken.load(std::memory_order_acquire))) {
      return false;
    }
    taken.fetch_add(static_cast<int64_t>(count), std::memory_order_relaxed);
    return true;
  }
  const int64_t limit_;
  std::atomic<int64_t> reads_{0};
  std::atomic<int64_t> writes_{0};
};

struct PendingEvent {
  Event event;
  std::shared_ptr<PollListener> listener;  // null if nobody needs to know of the poll
};

class EventBuffer {
 public:
  void Push(PendingEvent event) { Push(std::span(&event, 1)); }
  // Moves from `events`.
  void Push(std::span<PendingEvent> events) {
    absl::MutexLock lock(&mutex_);
    if (closed_) {
      return;
    }
    for (PendingEvent& event : events) {
      events_.push_back(std::move(event));
    }
  }
  // Discards everything queued, now and later, as nobody polls any more. Events hold listeners,
  // which may be connections that hold this buffer; without Close() the two would keep each other
  // alive.
  void Close();
  // Notifies the listeners after releasing its lock, so that they may take their own.
  size_t Poll(std::span<Event> events);
  bool empty() const {
    absl::MutexLock lock(&mutex_);
    return events_.empty();
  }

 private:
  mutable absl::Mutex mutex_;
  std::deque<PendingEvent> events_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shoal::transport
