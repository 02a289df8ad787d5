#include "worker/job/microbatch_drawer.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "worker/job/worker_core.h"

namespace shoal::worker {
namespace {

constexpr absl::Duration kDrawRetryDelay = absl::Milliseconds(20);

}  // namespace

MicrobatchDrawer::MicrobatchDrawer(Draw draw, uint64_t incarnation, Clock& clock,
                                   absl::Duration timeout)
    : draw_(std::move(draw)),
      incarnation_(incarnation),
      clock_(clock),
      timeout_(timeout),
      thread_([this] { Run(); }) {}

MicrobatchDrawer::~MicrobatchDrawer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void MicrobatchDrawer::BeginStep(const proto::StepWork& work) {
  absl::MutexLock lock(&mutex_);
  // A call of the last step may still be in progress; its answer is not for this one.
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !calling_; };
  mutex_.Await(absl::Condition(&idle));  // bounded by Call's time-out
  request_.Clear();
  request_.set_incarnation(incarnation_);
  request_.set_step(work.step());
  request_.set_attempt(work.attempt());
  request_.set_round(work.round());
  asked_ = due_ = exhausted_ = false;
  answer_.reset();
}

bool MicrobatchDrawer::MayAsk() const {
  absl::MutexLock lock(&mutex_);
  return !asked_ && !exhausted_;
}

void MicrobatchDrawer::Ask(absl::Duration ahead, std::span<const proto::PackResult> done) {
  absl::MutexLock lock(&mutex_);
  if (asked_ || exhausted_) {
    return;
  }
  asked_ = due_ = true;
  request_.set_number(request_.number() + 1);
  request_.set_ahead_seconds(absl::ToDoubleSeconds(ahead));
  request_.mutable_done()->Assign(done.begin(), done.end());
}

absl::StatusOr<std::optional<proto::MicrobatchWork>> MicrobatchDrawer::Take() {
  absl::MutexLock lock(&mutex_);
  if (exhausted_) {
    return std::nullopt;
  }
  SHOAL_CHECK(asked_);
  const auto there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answer_.has_value(); };
  mutex_.Await(absl::Condition(&there));  // bounded by Call's time-out
  const absl::StatusOr<proto::DrawMicrobatchReply> answer = *std::move(answer_);
  answer_.reset();
  asked_ = false;
  if (!answer.ok()) {
    return Annotate(answer.status(), "draw the next microbatch from the coordinator");
  }
  exhausted_ = answer->none();
  return answer->none() ? std::nullopt : std::optional(answer->microbatch());
}

absl::Duration MicrobatchDrawer::lead() const {
  absl::MutexLock lock(&mutex_);
  return 3 * latency_ + absl::Milliseconds(1);
}

absl::StatusOr<proto::DrawMicrobatchReply> MicrobatchDrawer::Call(
    const proto::DrawMicrobatchRequest& request) {
  const absl::Time deadline = clock_.Now() + timeout_;
  while (true) {
    absl::StatusOr<proto::DrawMicrobatchReply> reply = draw_(request);
    if (reply.ok() || !IsTransient(reply.status()) || clock_.Now() >= deadline) {
      return reply;
    }
    clock_.SleepFor(kDrawRetryDelay);
  }
}

void MicrobatchDrawer::Run() {
  while (true) {
    proto::DrawMicrobatchRequest request;
    {
      absl::MutexLock lock(&mutex_);
      const auto work = [this]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return due_ || stopping_; };
      mutex_.Await(absl::Condition(&work));
      if (stopping_) {
        return;
      }
      due_ = false;
      calling_ = true;
      request = request_;
    }
    const absl::Time start = clock_.Now();
    absl::StatusOr<proto::DrawMicrobatchReply> reply = Call(request);
    absl::MutexLock lock(&mutex_);
    calling_ = false;
    latency_ = 0.8 * latency_ + 0.2 * (clock_.Now() - start);
    answer_ = std::move(reply);
  }
}

}  // namespace shoal::worker
