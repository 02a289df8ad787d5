// Events of shm connections: completions from posting threads of this process, doorbells from rings
// in shared memory, and ends of connections.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/event_buffer.h"
#include "core/transport/shm/region.h"
#include "core/transport/sleeper.h"
#include "core/transport/transport.h"

namespace shoal::transport {

class ShmConnectionState;

// Wakes a queue, from this process or (through its descriptors) from a peer. Outlives the queue for
// handshakes and closings still in progress when the queue is destroyed.
struct ShmQueueWake {
  SharedMemory page;  // first word: the sleeper's flag
  std::unique_ptr<Sleeper> sleeper;
};

class ShmQueue final : public EventQueue {
 public:
  static absl::StatusOr<std::unique_ptr<ShmQueue>> Create(absl::Duration spin);

  size_t Poll(std::span<Event> events) override;
  bool Wait(absl::Duration timeout) override;
  void Wake() override;

  // Called by connections. A connection is removed once its kClosed has been polled.
  void Add(std::shared_ptr<ShmConnectionState> connection);
  void Push(std::span<PendingEvent> events);
  const std::shared_ptr<const ShmQueueWake>& wake() const { return wake_; }

 private:
  explicit ShmQueue(std::shared_ptr<const ShmQueueWake> wake) : wake_(std::move(wake)) {}
  bool HasWork();

  const std::shared_ptr<const ShmQueueWake> wake_;
  EventBuffer buffer_;
  std::atomic<bool> wake_requested_{false};

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<ShmConnectionState>> connections_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) =
      0;  // where the next Poll starts, so that no connection starves the others
};

}  // namespace shoal::transport
