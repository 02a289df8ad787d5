// The event queue of a FaultTransport: holds back events of the inner queue until they are due.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/random.h"
#include "core/transport/event_buffer.h"
#include "core/transport/testing/fault_transport.h"
#include "core/transport/transport.h"

namespace shoal::transport {

class FaultQueue final : public EventQueue {
 public:
  FaultQueue(std::unique_ptr<EventQueue> inner, const FaultOptions& options, uint64_t stream)
      : inner_(std::move(inner)), options_(options), random_(options.seed, stream) {}

  size_t Poll(std::span<Event> events) override;
  bool Wait(absl::Duration timeout) override;
  void Wake() override { inner_->Wake(); }

  EventQueue* inner() { return inner_.get(); }

  // Called by connections of this queue.
  void Track(uint64_t connection, std::shared_ptr<OutstandingOperations> outstanding);
  // The next completion of `kind` comes no sooner than the rate allows for `bytes`.
  void Pace(uint64_t connection, Event::Kind kind, int64_t bytes);
  // From now on, the connection and its operations end with `why`.
  void Break(uint64_t connection, const absl::Status& why);

 private:
  struct Held {
    Event event;
    absl::Time release;
  };
  // Events that must keep their order among themselves.
  struct HeldQueue {
    std::deque<Held> held;
    std::deque<absl::Time> paced;  // when the operations posted may complete
  };
  struct ConnectionEvents {
    std::shared_ptr<OutstandingOperations> outstanding;
    HeldQueue reads;
    HeldQueue writes;
    HeldQueue doorbells;
    std::optional<Event> closed;
    std::optional<absl::Status> broken;
    absl::Time busy_until = absl::InfinitePast();
    bool idle() const {
      return reads.held.empty() && writes.held.empty() && doorbells.held.empty();
    }
  };

  void Drain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Hold(Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Release(ConnectionEvents& connection, HeldQueue& queue, bool any_order, Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ReleaseNext(ConnectionEvents& connection, Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time NextRelease() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<EventQueue> inner_;
  const FaultOptions options_;

  absl::Mutex mutex_;
  Random random_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, ConnectionEvents> connections_
      ABSL_GUARDED_BY(mutex_);  // by connection, until its kClosed has been delivered
  size_t held_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::transport
