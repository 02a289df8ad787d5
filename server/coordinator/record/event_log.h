// The job's events, numbered in turn: the coordinator appends, any number of watchers read, each
// from the last number it saw, so a watcher reconnects without a gap, also to a later life of the
// coordinator. Bounded in number and bytes (timelines are large): drops the oldest. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/threads/steady_condition.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

class EventLog {
 public:
  // Keeps an event over this life.
  using Save = std::function<void(const proto::JobEvent&)>;

  // `saved` are those of lives before this one, which has `term`.
  explicit EventLog(std::vector<proto::JobEvent> saved = {}, int64_t term = 1, Save save = nullptr,
                    size_t capacity = kDefaultCapacity, size_t capacity_bytes = kDefaultBytes);

  // The number after which the events are new to one that saw `after` in the life of `term`: what
  // it saw of an earlier life may be lost, and its number given again by a life after that.
  int64_t NewAfter(int64_t after, int64_t term) const;

  // Sets numbers and term, and returns the last number. No event may follow one that ends the job
  // (done or failed). Before anybody sees them, those that are no timelines are saved, unless they
  // are not to outlive this life; timelines come before another.
  int64_t Append(std::vector<proto::JobEvent> events, bool outlive = true);

  // Returns the events after number `after` that are left, oldest first. Blocks until there is one,
  // the log is closed, or `timeout` (real time) is over.
  std::vector<proto::JobEvent> Wait(int64_t after, absl::Duration timeout);
  std::vector<proto::JobEvent> After(int64_t after) const;

  // Drops the oldest beyond so many bytes, but for the newest.
  void Shrink(size_t bytes);
  // Wakes all waiters; later waits return at once.
  void Close();
  bool closed() const;

  // About 64 Ki events of a hundred bytes.
  static constexpr size_t kDefaultCapacity = 65536;
  static constexpr size_t kDefaultBytes = 128 << 20;

 private:
  void DropBeyond(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<proto::JobEvent> Collect(int64_t after) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t term_;
  const Save save_;
  const size_t capacity_;
  const size_t capacity_bytes_;
  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  std::deque<proto::JobEvent> events_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Done or failed: nothing comes after it.
bool EndsJob(const proto::JobEvent& event);

// Whether an event tells the step of an earlier one again: a life of the coordinator whose machine
// has lost the newest events tells the last step that is committed, which followers may know.
bool RepeatsStep(const proto::JobEvent& earlier, const proto::JobEvent& event);

}  // namespace shoal::server
