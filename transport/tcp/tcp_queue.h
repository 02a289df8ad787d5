// Events of tcp connections, pushed by I/O threads.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "transport/event_buffer.h"
#include "transport/sleeper.h"
#include "transport/transport.h"

namespace shoal::transport {

class TcpQueue final : public EventQueue {
 public:
  static absl::StatusOr<std::unique_ptr<TcpQueue>> Create(absl::Duration spin);

  ~TcpQueue() override { inner_->buffer.Close(); }

  size_t Poll(std::span<Event> events) override { return inner_->buffer.Poll(events); }
  bool Wait(absl::Duration timeout) override;
  void Wake() override;

  // What connections hold: it outlives the queue for the sake of a closing that is under way when
  // the queue goes.
  struct Inner {
    EventBuffer buffer;
    std::unique_ptr<Sleeper> sleeper;
    std::atomic<bool> wake_requested{false};

    void Push(std::span<PendingEvent> events) {
      if (!events.empty()) {
        buffer.Push(events);
        sleeper->Notify();
      }
    }
  };
  const std::shared_ptr<Inner>& inner() const { return inner_; }

 private:
  explicit TcpQueue(std::shared_ptr<Inner> inner) : inner_(std::move(inner)) {}
  const std::shared_ptr<Inner> inner_;
};

}  // namespace shoal::transport
