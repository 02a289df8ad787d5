// Events of tcp connections, pushed by the threads that move their bytes: I/O threads, or the
// thread that waits here (sockets.h).
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/transport/event_buffer.h"
#include "core/transport/sleeper.h"
#include "core/transport/tcp/sockets.h"
#include "core/transport/transport.h"

namespace shoal::transport {

class TcpQueue final : public EventQueue {
 public:
  // Spreads connections over the threads, which must outlive the queue.
  static absl::StatusOr<std::unique_ptr<TcpQueue>> Create(std::vector<TcpIoThread*> io_threads,
                                                          absl::Duration spin);
  ~TcpQueue() override;

  size_t Poll(std::span<Event> events) override { return inner_->buffer.Poll(events); }
  bool Wait(absl::Duration timeout) override;
  void Wake() override;

  // What connections hold; it outlives the queue for closings still in progress when the queue is
  // destroyed.
  struct Inner {
    EventBuffer buffer;
    std::unique_ptr<Sleeper> sleeper;
    std::atomic<bool> wake_requested{false};
    std::vector<std::shared_ptr<TcpSockets>> sockets;  // by I/O thread
    std::atomic<size_t> next_sockets{0};

    void Push(std::span<PendingEvent> events) {
      if (!events.empty()) {
        buffer.Push(events);
        sleeper->Notify();
      }
    }
    // Returns where the next connection goes.
    const std::shared_ptr<TcpSockets>& NextSockets() {
      return sockets[next_sockets.fetch_add(1, std::memory_order_relaxed) % sockets.size()];
    }
  };
  const std::shared_ptr<Inner>& inner() const { return inner_; }

 private:
  TcpQueue(std::shared_ptr<Inner> inner, std::vector<TcpIoThread*> io_threads)
      : inner_(std::move(inner)), io_threads_(std::move(io_threads)) {}
  bool Found();

  const std::shared_ptr<Inner> inner_;
  const std::vector<TcpIoThread*> io_threads_;
};

}  // namespace shoal::transport
