// Follows a job's events from a thread of its own, across broken connections and lives of the
// coordinator: after a break it asks for the events after the last one it has, so none is lost and
// none comes twice. The owner takes events one at a time.
//
// Thread-safe. The queue is bounded: a slow reader slows the stream, not the memory. Destruction
// ends the stream.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/rpc/channel.h"
#include "proto/coordinator.pb.h"

namespace shoal::cli {

class EventWatch {
 public:
  // Gives up after `patience` without a connection, and with `as_told` not before the time for
  // which the coordinator said that it is to be waited for. Gives up at once where the coordinator
  // does not have the job.
  EventWatch(std::shared_ptr<rpc::Channel> channel, std::string job_id, absl::Duration patience,
             bool as_told, Clock& clock = RealClock());
  ~EventWatch();
  EventWatch(const EventWatch&) = delete;
  EventWatch& operator=(const EventWatch&) = delete;

  // The next event, or nullopt after `limit` without one.
  std::optional<proto::JobEvent> Next(absl::Duration limit);

  // With `as_told`, of the coordinator: that it does not answer, that it answers again; each once.
  std::vector<std::string> TakeNotices();

  // OK while events may still come or the job is over; else why the stream was given up. Events
  // received before that are still handed out by Next.
  absl::Status status() const;

 private:
  void Follow();
  // Whether the coordinator answers and has the job.
  absl::Status Ask();
  absl::Status ReadStream();
  // False: it is given up.
  bool GoesOn(const absl::Status& failure, bool answers, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Take(const proto::JobEvent& event);
  bool HasEventOrEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EndedOrStop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoomOrStop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<rpc::Channel> channel_;
  const std::string job_id_;
  const absl::Duration patience_;
  const bool as_told_;
  Clock& clock_;
  // Of the thread.
  absl::Duration told_;  // patience, by the coordinator
  bool away_ = false;    // a notice says so
  absl::Time broken_since_ = absl::InfiniteFuture();

  mutable absl::Mutex mutex_;
  std::deque<proto::JobEvent> events_ ABSL_GUARDED_BY(mutex_);
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_term_ ABSL_GUARDED_BY(mutex_) = 0;  // of that one
  std::vector<std::string> notices_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // a done or failed event came, or it was given up
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace shoal::cli
