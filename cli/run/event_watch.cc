#include "cli/run/event_watch.h"

#include <algorithm>

#include "cli/terminal/terminal.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"
#include "core/rpc/coordinator_service.h"

namespace shoal::cli {
namespace {

constexpr size_t kMaximumQueued = 1024;
constexpr absl::Duration kRetryInterval = absl::Milliseconds(200);
constexpr absl::Duration kConnected = absl::Seconds(1);
constexpr absl::Duration kStreamDeadline =
    absl::Hours(1);  // then the stream is simply opened again

bool EndsJob(const proto::JobEvent& event) { return event.has_done() || event.has_failed(); }

}  // namespace

EventWatch::EventWatch(std::shared_ptr<rpc::Channel> channel, std::string job_id,
                       absl::Duration patience, bool as_told, Clock& clock)
    : channel_(std::move(channel)),
      job_id_(std::move(job_id)),
      patience_(patience),
      as_told_(as_told),
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

std::vector<std::string> EventWatch::TakeNotices() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(notices_, {});
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
  broken_since_ = absl::InfiniteFuture();
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

absl::Status EventWatch::Ask() {
  proto::GetStatusRequest request;
  request.set_job_id(job_id_);
  SHOAL_ASSIGN_OR_RETURN(const proto::GetStatusReply status,
                         channel_->Call(&rpc::CoordinatorService::GetStatus, request));
  told_ = absl::Seconds(status.coordinator_patience_seconds());
  if (std::exchange(away_, false)) {
    absl::MutexLock lock(&mutex_);
    notices_.emplace_back("the coordinator answers again");
  }
  return absl::OkStatus();
}

absl::Status EventWatch::ReadStream() {
  proto::WatchJobRequest request;
  request.set_job_id(job_id_);
  {
    absl::MutexLock lock(&mutex_);
    request.set_after_event(last_number_);
    request.set_term(last_term_);
  }
  const absl::Status status = channel_->Watch(
      &rpc::CoordinatorService::WatchJob, request,
      [this](const proto::JobEvent& event) { return Take(event); }, {.deadline = kStreamDeadline});
  return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
}

bool EventWatch::GoesOn(const absl::Status& failure, bool answers, absl::Time now) {
  const bool away =
      as_told_ && !answers && (absl::IsUnavailable(failure) || absl::IsDeadlineExceeded(failure));
  const absl::Duration patience = away ? std::max(patience_, told_) : patience_;
  const absl::Duration left = broken_since_ + patience - now;
  if (left < absl::ZeroDuration() || absl::IsUnauthenticated(failure) ||
      absl::IsNotFound(failure)) {
    status_ = failure;
    ended_ = true;
    return false;
  }
  if (away && !std::exchange(away_, true)) {
    notices_.push_back(fmt::format("{}; waiting for it for {} at most", Message(failure),
                                   FormatSeconds(absl::ToDoubleSeconds(left))));
  }
  return true;
}

void EventWatch::Follow() {
  bool answered = true;
  while (true) {
    const absl::Time begun = clock_.Now();
    absl::Status status = Ask();
    const bool answers = status.ok();
    if (answers) {
      status = ReadStream();
    }
    absl::MutexLock lock(&mutex_);
    if (stopping_ || ended_) {
      return;
    }
    // An answer after none, or a stream that lived, was a connection, though no event came.
    const absl::Time now = clock_.Now();
    const bool connected = answers && (!answered || now - begun > kConnected);
    if (status.ok() || connected) {
      broken_since_ = absl::InfiniteFuture();
    }
    answered = answers;
    if (!status.ok()) {
      broken_since_ = std::min(broken_since_, now);
      if (!GoesOn(status, answers, now)) {
        return;
      }
    }
    AwaitFor(&mutex_, absl::Condition(this, &EventWatch::EndedOrStop), kRetryInterval);
  }
}

}  // namespace shoal::cli
