// Events of verbs connections. The polling thread drives the devices' completion queues itself, so
// that an event needs no other thread; the service thread (service.h) steps in for queues that
// nobody polls for a while.
//
// Waiting is adaptive: it polls for as long as recent waits took if they were short, and otherwise
// sleeps on the devices' completion channels, so that a busy queue answers at once and an idle one
// burns no core.
//
// Locks: mutex_ is held while connections are driven, and always taken before a connection's own.
// Events pushed under it keep their order.
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

// Ends the service thread's sleep. Thread-safe.
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

// Where connections put events: into the poller's memory while there is room, else into a queue for
// the next poll.
class EventSink {
 public:
  struct Kept {
    Event event;
    std::shared_ptr<VerbsConnectionState> connection;
  };
  EventSink(std::span<Event> events, size_t limit, std::deque<Kept>* kept)
      : events_(events), limit_(limit), kept_(kept) {}
  // If true, fetch no more. What was fetched may still be pushed.
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

// The part of a queue that connections hold: it outlives the queue for closings still in progress
// when the queue is destroyed.
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

  // From here on, polls drive the connection. It is removed when it ends.
  void Add(std::shared_ptr<VerbsConnectionState> connection) ABSL_LOCKS_EXCLUDED(mutex_);
  // Drives only this connection, or ends it; keeps its events for the next poll.
  void Drive(VerbsConnectionState& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(VerbsConnectionState& connection, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps completions that need no device: those of empty operations.
  void Keep(VerbsConnectionState& connection, std::span<const Event> events)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // For the service thread, now and then: checks whether peers live, and drives connections that
  // nobody polls.
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);
  // Call when posted work did not fit the send queue: the service thread then moves it on even if
  // nobody polls.
  void AskForHelp();
  // For the service thread. False if no help is needed (any more).
  bool Help() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<VerbsConnectionState>> connections() const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The most events fetched by one wait, to be polled after it.
  static constexpr size_t kFetch = 64;

  VerbsQueueCore(std::shared_ptr<Nudge> wake, std::shared_ptr<Nudge> service, absl::Duration spin)
      : wake_(std::move(wake)), service_(std::move(service)), spin_(spin) {}
  size_t TakeKept(std::span<Event> events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DriveAll(EventSink& sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true if there is something to poll.
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
  // index of the connection that the next poll drives first; 0 if there is none
  size_t first_ ABSL_GUARDED_BY(mutex_) = 0;
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
