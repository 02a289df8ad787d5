// The job's events, numbered in turn: the coordinator appends, any number of watchers read, each
// from the last number it saw, so a watcher reconnects without a gap. Bounded in number and bytes
// (timelines are large): drops the oldest. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
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
  explicit EventLog(size_t capacity = kDefaultCapacity, size_t capacity_bytes = kDefaultBytes,
                    int64_t after = 0);
  // One whose numbers follow those that earlier lives of the coordinator gave, after `issued`
  // incarnations: whoever watches over its end reads on.
  static std::shared_ptr<EventLog> OfLife(int64_t issued);

  // Sets the number. No event may follow one that ends the job (done or failed).
  void Append(proto::JobEvent event);

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

}  // namespace shoal::server
