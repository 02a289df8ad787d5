// Events of verbs connections. Whoever polls drives the devices' completion queues itself, so that
// an event takes no other thread on its way; the service thread (service.h) steps in for
// queues that nobody polls for a while.
//
// Waiting is adaptive: it looks for as long as recent waits took, if that is short, and sleeps on
// the devices' completion channels otherwise, so that a busy queue answers at once and an idle one
// burns no core.
//
// Locks: mutex_ is held while connections are driven, and always taken before a connection's own.
// What is pushed under it keeps its order.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/file.h"
#include "core/transport/adaptive_spin.h"
#include "core/transport/transport.h"
#include "core/transport/verbs/queue_pair.h"

namespace shoal::transport {

class VerbsConnectionState;

// Ends the service thread's sleep, from any thread.
class Nudge {
 public:
  static absl::StatusOr<std::shared_ptr<Nudge>> Create();
  void Now();
  void Clear();
  int fd() const { return fd_.get(); }

 private:
  explicit Nudge(UniqueFd fd) : fd_(std::move(fd)) {}
  const UniqueFd fd_;
};

// Where connections put events: into the poller's memory while there is room, and kept for the next
// poll otherwise.
class EventSink {
 public:
  struct Kept {
    Event event;
    std::shared_ptr<VerbsConnectionState> connection;
  };
  EventSink(std::span<Event> events, size_t limit, std::deque<Kept>* kept)
      : events_(events), limit_(limit), kept_(kept) {}
  // Nothing more should be fetched. What was fetched may still be pushed.
  bool full() const { return pushed_ >= limit_; }
  size_t direct() const { return direct_; }
  void Push(VerbsConnectionState& connection, Event&& event);

 private:
  void Keep(VerbsConnectionState& connection, Event&& event);

  const std::span<Event> events_;
  const size_t limit_;
  std::deque<Kept>* const kept_;
  size_t direct_ = 0;
  size_t pushed_ = 0;
};

// What connections hold of a queue: it outlives the queue for the sake of a closing that is under
// way when the queue goes.
class VerbsQueueCore {
 public:
  static absl::StatusOr<std::shared_ptr<VerbsQueueCore>> Create(
      std::span<const std::shared_ptr<VerbsDevice>> devices, absl::Duration spin,
      std::shared_ptr<Nudge> service);

  const std::shared_ptr<CompletionChannel>& channel(size_t device) const {
    return channels_[device];
  }

  size_t Poll(std::span<Event> events) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Wait(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake();
  void Abandon() ABSL_LOCKS_EXCLUDED(mutex_);  // nobody will poll any more

  // From here on the connection is driven by polls. It leaves by ending.
  void Add(std::shared_ptr<VerbsConnectionState> connection) ABSL_LOCKS_EXCLUDED(mutex_);
  // Drives this connection alone, or ends it: its events are kept for the next poll.
  void Drive(VerbsConnectionState& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(VerbsConnectionState& connection, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // A completion that needs no device: of an empty operation.
  void Keep(VerbsConnectionState& connection, std::span<const Event> events)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // For the service thread, now and then: looks whether peers live, and drives connections that
  // nobody polls.
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);
  // Posted work did not fit the send queue: the service thread sees to it that it goes on, also if
  // nobody polls.
  void AskForHelp();
  // For the service thread. False if no help is needed (any more).
  bool Help() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<VerbsConnectionState>> connections() const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Most events fetched by one wait, to be polled after it.
  static constexpr size_t kFetch = 64;

  VerbsQueueCore(std::shared_ptr<Nudge> wake, std::shared_ptr<Nudge> service, absl::Duration spin)
      : wake_(std::move(wake)), service_(std::move(service)), spin_(spin) {}
  size_t TakeKept(std::span<Event> events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DriveAll(EventSink& sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if there is something to poll.
  bool Fetch() ABSL_LOCKS_EXCLUDED(mutex_);
  bool FetchLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SpinFor(absl::Duration time) ABSL_LOCKS_EXCLUDED(mutex_);
  void SleepUntil(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  void HearChannels() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Nudge> wake_;
  const std::shared_ptr<Nudge> service_;
  std::vector<std::shared_ptr<CompletionChannel>> channels_;  // by device
  std::atomic<bool> wake_requested_{false};
  std::atomic<bool> help_wanted_{false};

  mutable absl::Mutex mutex_;
  AdaptiveSpin spin_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<VerbsConnectionState>> connections_ ABSL_GUARDED_BY(mutex_);
  size_t first_ ABSL_GUARDED_BY(mutex_) = 0;  // whom the next poll drives first; 0 without any
  std::deque<EventSink::Kept> kept_ ABSL_GUARDED_BY(mutex_);
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool polled_ ABSL_GUARDED_BY(mutex_) = false;  // since the last tick
};

class VerbsQueue final : public EventQueue {
 public:
  explicit VerbsQueue(std::shared_ptr<VerbsQueueCore> core) : core_(std::move(core)) {}
  ~VerbsQueue() override { core_->Abandon(); }
  size_t Poll(std::span<Event> events) override { return core_->Poll(events); }
  bool Wait(absl::Duration timeout) override { return core_->Wait(timeout); }
  void Wake() override { core_->Wake(); }
  const std::shared_ptr<VerbsQueueCore>& core() const { return core_; }

 private:
  const std::shared_ptr<VerbsQueueCore> core_;
};

}  // namespace shoal::transport
