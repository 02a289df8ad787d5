#include "cli/run/event_watch.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"
#include "core/rpc/coordinator_service.h"

namespace shoal::cli {
namespace {

constexpr size_t kMaximumQueued = 1024;
constexpr absl::Duration kRetryInterval = absl::Milliseconds(200);
constexpr absl::Duration kStreamDeadline =
    absl::Hours(1);  // then the stream is simply opened again

bool EndsJob(const proto::JobEvent& event) { return event.has_done() || event.has_failed(); }

}  // namespace

EventWatch::EventWatch(std::shared_ptr<rpc::Channel> channel, std::string job_id,
                       absl::Duration patience, Clock& clock)
    : channel_(std::move(channel)),
      job_id_(std::move(job_id)),
      patience_(patience),
      clock_(clock),
      thread_([this] { Follow(); }) {}

EventWatch::~EventWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  channel_->Cancel();
  thread_.join();
}

std::optional<proto::JobEvent> EventWatch::Next(absl::Duration limit) {
  absl::MutexLock lock(&mutex_);
  AwaitFor(&mutex_, absl::Condition(this, &EventWatch::HasEventOrEnd), limit);
  if (events_.empty()) {
    return std::nullopt;
  }
  proto::JobEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

absl::Status EventWatch::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

bool EventWatch::HasEventOrEnd() const { return !events_.empty() || ended_; }
bool EventWatch::EndedOrStop() const { return ended_ || stopping_; }
bool EventWatch::HasRoomOrStop() const { return events_.size() < kMaximumQueued || stopping_; }

bool EventWatch::Take(const proto::JobEvent& event) {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &EventWatch::HasRoomOrStop));
  if (stopping_) {
    return false;
  }
  if (std::pair(event.term(), event.number()) > std::pair(last_term_, last_number_)) {
    if (const int64_t missed = event.number() - last_number_ - 1; missed > 0) {
      LogWarning("the coordinator has forgotten {} older events of the job", missed);
    }
    last_number_ = event.number();
    last_term_ = event.term();
    events_.push_back(event);
    ended_ = ended_ || EndsJob(event);
  }
  return !ended_;
}

void EventWatch::Follow() {
  absl::Time broken_since = absl::InfiniteFuture();
  while (true) {
    proto::WatchJobRequest request;
    request.set_job_id(job_id_);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_ || ended_) {
        return;
      }
      request.set_after_event(last_number_);
      request.set_term(last_term_);
    }
    const absl::Status status = channel_->Watch(&rpc::CoordinatorService::WatchJob, request,
                                                [&](const proto::JobEvent& event) {
                                                  broken_since = absl::InfiniteFuture();
                                                  return Take(event);
                                                },
                                                {.deadline = kStreamDeadline});
    if (status.ok() || status.code() == absl::StatusCode::kDeadlineExceeded) {
      broken_since = absl::InfiniteFuture();
    } else {
      broken_since = std::min(broken_since, clock_.Now());
      if (clock_.Now() - broken_since > patience_ || absl::IsUnauthenticated(status) ||
          absl::IsNotFound(status)) {
        absl::MutexLock lock(&mutex_);
        status_ = status;
        ended_ = true;
        return;
      }
    }
    absl::MutexLock lock(&mutex_);
    AwaitFor(&mutex_, absl::Condition(this, &EventWatch::EndedOrStop), kRetryInterval);
  }
}

}  // namespace shoal::cli
