#include "worker/peers/stage_service.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::worker {

void StageService::Open(const StageGroup& group) {
  absl::MutexLock lock(&mutex_);
  SHOAL_CHECK(!group_.has_value());
  group_ = group;
}

absl::Status StageService::Expect(const StepAttempt& attempt, Accept accept) {
  absl::MutexLock lock(&mutex_);
  SHOAL_CHECK(!accept_);
  if (!(attempt > attempt_)) {
    return FailedPrecondition("step {} attempt {} comes after step {} attempt {}", attempt.step,
                              attempt.attempt, attempt_.step, attempt_.attempt);
  }
  attempt_ = attempt;
  accept_ = std::move(accept);
  callers_.clear();
  return absl::OkStatus();
}

absl::Status StageService::CheckLatest() const {
  if (latest_ > attempt_) {
    return Aborted("step {} attempt {} is over: another stage is at step {} attempt {}",
                   attempt_.step, attempt_.attempt, latest_.step, latest_.attempt);
  }
  return closed_;
}

absl::Status StageService::CheckExpected() {
  absl::MutexLock lock(&mutex_);
  return CheckLatest();
}

absl::StatusOr<std::string> StageService::AwaitConfirmed(int from, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto confirmed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !CheckLatest().ok() || !callers_[from].confirmed.empty();
  };
  AwaitUntil(&mutex_, absl::Condition(&confirmed), deadline);
  SHOAL_RETURN_IF_ERROR(CheckLatest());
  if (callers_[from].confirmed.empty()) {
    return DeadlineExceeded("{} did not connect for step {} attempt {} in time",
                            group_->NameOf(from), attempt_.step, attempt_.attempt);
  }
  return callers_[from].confirmed;
}

void StageService::EndExpect() {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !accepting_; };
  mutex_.Await(absl::Condition(&idle));
  accept_ = nullptr;
}

void StageService::Close(const absl::Status& why) {
  peers_.Close(why);
  absl::MutexLock lock(&mutex_);
  if (closed_.ok()) {
    closed_ = why;
  }
}

void StageService::Reset() {
  peers_.Reset();
  EndExpect();
  absl::MutexLock lock(&mutex_);
  group_.reset();
  closed_ = absl::OkStatus();
  attempt_ = {};
  latest_ = {};
  callers_.clear();
}

absl::Status StageService::CheckCaller(const proto::ConnectStageRequest& request) const {
  const StageGroup& group = *group_;
  SHOAL_RETURN_IF_ERROR(CheckJob(group.job_id, request.job_id()));
  const auto from = static_cast<size_t>(request.from());
  if (request.stages() != group.stages() || request.to() != group.stage || request.from() < 0 ||
      request.from() >= group.stage || request.incarnation() != group.workers[from].incarnation ||
      request.peer() != group.workers[static_cast<size_t>(group.stage)].incarnation) {
    return PermissionDenied(
        "stage {} calls stage {} of {}, and this is stage {} of {} in group {}, or one of the two "
        "is "
        "of another group, or another life of that worker",
        request.from(), request.to(), request.stages(), group.stage, group.stages(), group.group);
  }
  return absl::OkStatus();
}

absl::Status StageService::AwaitAttempt(const StepAttempt& attempt) {
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !closed_.ok() || (group_.has_value() && !accepting_ && attempt_ >= attempt);
  };
  const bool waited = AwaitFor(&mutex_, absl::Condition(&there), patience_);
  SHOAL_RETURN_IF_ERROR(closed_);
  if (!waited) {
    return Unavailable("this worker has not come to step {} attempt {} yet; try again",
                       attempt.step, attempt.attempt);
  }
  if (attempt_ > attempt) {
    return FailedPrecondition("step {} attempt {} is over, this worker is at step {} attempt {}",
                              attempt.step, attempt.attempt, attempt_.step, attempt_.attempt);
  }
  return absl::OkStatus();
}

absl::StatusOr<proto::ConnectStageReply> StageService::TakeOffers(
    const proto::ConnectStageRequest& request) {
  accepting_ = true;
  callers_[request.from()].accepted.clear();  // the earlier one is dropped, even if this one fails
  const Accept accept = accept_;
  mutex_.Unlock();
  auto taken = accept(request);
  mutex_.Lock();
  accepting_ = false;
  SHOAL_RETURN_IF_ERROR(taken.status());
  callers_[request.from()].accepted = taken->transport;
  proto::ConnectStageReply reply;
  reply.set_transport(taken->transport);
  reply.set_answer(std::move(taken->answer));
  reply.set_reason(std::move(taken->reason));
  return reply;
}

absl::StatusOr<proto::ConnectStageReply> StageService::ConnectStage(
    const proto::ConnectStageRequest& request) {
  const StepAttempt attempt{request.step(), request.attempt(), request.round()};
  absl::MutexLock lock(&mutex_);
  if (group_.has_value()) {
    SHOAL_RETURN_IF_ERROR(CheckCaller(request));
    latest_ = std::max(latest_, attempt);
  }
  SHOAL_RETURN_IF_ERROR(AwaitAttempt(attempt));
  SHOAL_RETURN_IF_ERROR(CheckCaller(request));
  Caller& caller = callers_[request.from()];
  if (!request.confirmed().empty()) {
    if (request.confirmed() != caller.accepted) {
      return FailedPrecondition("{} confirms a connection over {}, which was not accepted",
                                group_->NameOf(request.from()), request.confirmed());
    }
    caller.confirmed = request.confirmed();
    return proto::ConnectStageReply();
  }
  if (!accept_ || !caller.confirmed.empty()) {
    return FailedPrecondition("{} cannot connect for step {} attempt {} any more",
                              group_->NameOf(request.from()), request.step(), request.attempt());
  }
  return request.offers().empty() ? proto::ConnectStageReply() : TakeOffers(request);
}

}  // namespace shoal::worker
