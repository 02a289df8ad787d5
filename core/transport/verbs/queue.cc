#include "core/transport/verbs/queue.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/verbs/connection.h"

namespace shoal::transport {
namespace {

// Finds an answer that is almost there sooner, without reading the clock or yielding the core.
constexpr int kLooksBeforeClock = 32;

}  // namespace

void EventSink::Push(VerbsConnectionState& connection, Event&& event) {
  ++pushed_;
  if (direct_ < events_.size() && kept_->empty()) [[likely]] {
    connection.Delivered(event.kind);
    events_[direct_++] = std::move(event);
  } else {
    Keep(connection, std::move(event));
  }
}

void EventSink::Keep(VerbsConnectionState& connection, Event&& event) {
  kept_->push_back({std::move(event), connection.shared_from_this()});
}

absl::StatusOr<std::shared_ptr<Nudge>> Nudge::Create() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "an eventfd for a verbs transport");
  }
  return std::shared_ptr<Nudge>(new Nudge(std::move(fd)));
}

void Nudge::Now() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof one);
}

void Nudge::Clear() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd_.get(), &count, sizeof count);
}

absl::StatusOr<std::shared_ptr<VerbsQueueCore>> VerbsQueueCore::Create(
    std::span<const std::shared_ptr<VerbsDevice>> devices, absl::Duration spin,
    std::shared_ptr<Nudge> service) {
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<Nudge> wake, Nudge::Create());
  std::shared_ptr<VerbsQueueCore> core(
      new VerbsQueueCore(std::move(wake), std::move(service), kSpinRange * spin));
  for (const auto& device : devices) {
    SHOAL_ASSIGN_OR_RETURN(core->channels_.emplace_back(), CompletionChannel::Create(device));
  }
  return core;
}

void VerbsQueueCore::Add(std::shared_ptr<VerbsConnectionState> connection) {
  absl::MutexLock lock(&mutex_);
  connections_.push_back(std::move(connection));
}

size_t VerbsQueueCore::TakeKept(std::span<Event> events) {
  size_t count = 0;
  for (; count < events.size() && !kept_.empty(); ++count) {
    EventSink::Kept& kept = kept_.front();
    kept.connection->Delivered(kept.event.kind);
    kept.connection->GiveCredit();
    events[count] = std::move(kept.event);
    kept_.pop_front();
  }
  return count;
}

inline void VerbsQueueCore::DriveAll(EventSink& sink) {
  const size_t count = connections_.size();
  bool ended = false;
  for (size_t driven = 0; driven < count && !sink.full(); ++driven) {
    VerbsConnectionState& connection = *connections_[first_];
    first_ = first_ + 1 < count ? first_ + 1 : 0;
    connection.Progress(sink);
    ended = ended || connection.ended();
  }
  if (ended) {
    DropEnded();
  }
}

void VerbsQueueCore::DropEnded() {
  std::erase_if(connections_, [](const auto& connection) { return connection->ended(); });
  first_ = 0;
}

size_t VerbsQueueCore::Poll(std::span<Event> events) {
  absl::MutexLock lock(&mutex_);
  polled_ = true;
  if (!kept_.empty()) {
    return TakeKept(events);
  }
  EventSink sink(events, events.size(), &kept_);
  DriveAll(sink);
  return sink.direct();
}

bool VerbsQueueCore::FetchLocked() {
  polled_ = true;
  if (kept_.empty()) {
    EventSink sink({}, kFetch, &kept_);
    DriveAll(sink);
  }
  return !kept_.empty();
}

bool VerbsQueueCore::Fetch() {
  absl::MutexLock lock(&mutex_);
  return FetchLocked();
}

bool VerbsQueueCore::SpinFor(absl::Duration time) {
  if (time <= absl::ZeroDuration()) {
    return false;
  }
  const auto found = [this] {
    return wake_requested_.exchange(false, std::memory_order_acq_rel) || Fetch();
  };
  for (int look = 0; look < kLooksBeforeClock; ++look) {
    if (found()) {
      return true;
    }
  }
  const absl::Time until = RealClock().Now() + time;
  do {
    if (found()) {
      return true;
    }
    sched_yield();
  } while (RealClock().Now() < until);
  return false;
}

void VerbsQueueCore::HearChannels() {
  for (const auto& channel : channels_) {
    while (const ibv_cq* cq = channel->TakeEvent()) {
      for (const auto& connection : connections_) {
        connection->HearEvent(cq);
      }
    }
  }
}

// Arms every completion queue, looks once more (what came before the arming raises no event) and
// sleeps.
void VerbsQueueCore::SleepUntil(absl::Time deadline) {
  std::vector<pollfd> watched = {{.fd = wake_->fd(), .events = POLLIN, .revents = 0}};
  {
    absl::MutexLock lock(&mutex_);
    EventSink sink({}, kFetch, &kept_);
    for (const auto& connection : connections_) {
      connection->Arm(sink);
    }
    if (FetchLocked()) {
      return;
    }
  }
  for (const auto& channel : channels_) {
    watched.push_back({.fd = channel->fd(), .events = POLLIN, .revents = 0});
  }
  const absl::Duration left = deadline - RealClock().Now();
  if (left <= absl::ZeroDuration()) {
    return;
  }
  const timespec time = absl::ToTimespec(std::min(left, absl::Seconds(60)));
  ppoll(watched.data(), watched.size(), &time, nullptr);
  wake_->Clear();
  absl::MutexLock lock(&mutex_);
  HearChannels();
}

bool VerbsQueueCore::Wait(absl::Duration timeout) {
  if (wake_requested_.exchange(false, std::memory_order_acq_rel) || Fetch()) {
    return true;
  }
  if (timeout <= absl::ZeroDuration()) {
    return false;
  }
  const absl::Time start = RealClock().Now();
  const absl::Time deadline = start + timeout;
  absl::Duration budget;
  {
    absl::MutexLock lock(&mutex_);
    budget = spin_.budget();
  }
  bool found = SpinFor(std::min(budget, timeout));
  while (!found && RealClock().Now() < deadline) {
    SleepUntil(deadline);
    found = wake_requested_.exchange(false, std::memory_order_acq_rel) || Fetch();
  }
  absl::MutexLock lock(&mutex_);
  if (found) {
    spin_.Found(RealClock().Now() - start);
  } else {
    spin_.FoundNothing();
  }
  return found;
}

void VerbsQueueCore::Wake() {
  wake_requested_.store(true, std::memory_order_release);
  wake_->Now();
}

void VerbsQueueCore::AskForHelp() {
  if (!help_wanted_.exchange(true)) {
    service_->Now();
  }
}

bool VerbsQueueCore::Help() {
  if (!help_wanted_.exchange(false)) {
    return false;
  }
  bool more = false;
  {
    absl::MutexLock lock(&mutex_);
    EventSink sink({}, kFetch, &kept_);
    for (const auto& connection : connections_) {
      if (connection->HasWaiting()) {
        connection->Progress(sink);
        more = more || connection->HasWaiting();
      }
    }
    DropEnded();
  }
  wake_->Now();
  if (more) {
    help_wanted_.store(true);
  }
  return more;
}

void VerbsQueueCore::Abandon() {
  std::deque<EventSink::Kept> forgotten;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  abandoned_ = true;
  forgotten.swap(kept_);
}

void VerbsQueueCore::Drive(VerbsConnectionState& connection) {
  absl::MutexLock lock(&mutex_);
  EventSink sink({}, kFetch, &kept_);
  connection.Progress(sink);
  if (connection.ended()) {
    DropEnded();
  }
}

void VerbsQueueCore::End(VerbsConnectionState& connection, const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    EventSink sink({}, kFetch, &kept_);
    connection.End(why, sink);
    DropEnded();
    if (abandoned_) {
      kept_.clear();
    }
  }
  wake_->Now();
}

void VerbsQueueCore::Keep(VerbsConnectionState& connection, std::span<const Event> events) {
  {
    absl::MutexLock lock(&mutex_);
    for (const Event& event : events) {
      kept_.push_back({event, connection.shared_from_this()});
    }
  }
  wake_->Now();
}

void VerbsQueueCore::Tick() {
  bool wake = false;
  {
    absl::MutexLock lock(&mutex_);
    EventSink sink({}, kFetch, &kept_);
    const bool neglected = !polled_;
    polled_ = false;
    for (const auto& connection : connections_) {
      if (neglected) {
        connection->Progress(sink);
      }
      connection->Tick(sink);
    }
    DropEnded();
    if (abandoned_) {
      kept_.clear();
    }
    wake = !kept_.empty();
  }
  if (wake) {
    wake_->Now();
  }
}

std::vector<std::shared_ptr<VerbsConnectionState>> VerbsQueueCore::connections() const {
  absl::MutexLock lock(&mutex_);
  return connections_;
}

}  // namespace shoal::transport
