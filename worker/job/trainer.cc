#include "worker/job/trainer.h"

#include <atomic>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/rpc/coordinator_service.h"
#include "worker/job/microbatch_drawer.h"
#include "worker/job/run_watch.h"

namespace shoal::worker {
namespace {

// How long a poll waits at the coordinator, and so how late a Stop is noticed between steps.
constexpr int kPollSeconds = 1;
// Between tries if the coordinator does not answer. Tries go on until the lease is over, when Stop
// is called.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);
constexpr int kAnswerSeconds = 5;  // for the answer itself
// Whether a job that is being made is still this worker's. Answers may be large.
constexpr absl::Duration kBetweenQuestions = absl::Seconds(5);

rpc::CallOptions AnswerWithin(int seconds) { return {.deadline = absl::Seconds(seconds)}; }

}  // namespace

bool Trainer::stopped() const {
  absl::MutexLock lock(&mutex_);
  return stopped_;
}

void Trainer::Stop(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) {
      return;
    }
    stopped_ = true;
    why_ = why;
  }
  cancellation_.Cancel(why.ok() ? absl::CancelledError("the worker is leaving") : why);
  coordinator_->Cancel();
}

void Trainer::Drain(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (job_ != nullptr && !stopped_) {
      LogInfo("{}: leaves after the pack at hand, within {}", Message(why),
              absl::FormatDuration(grace_));
      drained_at_ = clock_.Now();
      job_->Drain();
      return;
    }
  }
  Stop(why);
}

bool Trainer::draining() const {
  absl::MutexLock lock(&mutex_);
  return drained_at_.has_value();
}

bool Trainer::out_of_grace() const {
  absl::MutexLock lock(&mutex_);
  return drained_at_.has_value() && clock_.Now() >= *drained_at_ + grace_;
}

bool Trainer::left_a_job() const {
  absl::MutexLock lock(&mutex_);
  return left_a_job_;
}

template <typename Reply>
absl::StatusOr<Reply> Trainer::OfNewestTerm(absl::StatusOr<Reply> reply) {
  if (reply.ok()) {
    const absl::Status admitted = term_.Admit(reply->term(), "the coordinator's answer");
    return admitted.ok() ? std::move(reply) : Unavailable("{}", Message(admitted));
  }
  return reply;
}

absl::StatusOr<proto::JoinJobReply> Trainer::Join(uint64_t incarnation) {
  proto::JoinJobRequest request;
  request.set_incarnation(incarnation);
  request.set_wait_seconds(kPollSeconds);
  while (!stopped()) {
    auto reply = OfNewestTerm(coordinator_->Call(&rpc::CoordinatorService::JoinJob, request,
                                                 AnswerWithin(kPollSeconds + kAnswerSeconds)));
    if (reply.ok() && (reply->ready() || reply->shut_down())) {
      return reply;
    }
    if (!reply.ok()) {
      if (!IsTransient(reply.status())) {
        return Annotate(reply.status(), "join the job");
      }
      clock_.SleepFor(kRetryDelay);
    }
  }
  proto::JoinJobReply nothing;
  nothing.set_shut_down(true);
  return nothing;
}

absl::StatusOr<Trainer::Next> Trainer::Loop(WorkerJob& job, const proto::JoinJobReply& join,
                                            uint64_t incarnation) {
  proto::NextStepRequest request;
  request.set_job_id(join.job_id());
  request.set_run(join.run());
  request.set_incarnation(incarnation);
  request.set_pushes(job.pushes());
  request.set_formation(join.formation());
  const auto is_over = [this, question = request] {
    const auto reply = OfNewestTerm(coordinator_->Call(&rpc::CoordinatorService::NextStep, question,
                                                       AnswerWithin(kAnswerSeconds)));
    return out_of_grace() || (reply.ok() && (reply->job_over() || reply->join_again()));
  };
  RunWatch watch(
      {.is_over = is_over, .end = [&job] { job.Cancel(Cancelled("nobody waits for the step")); }},
      clock_);
  request.set_wait_seconds(kPollSeconds);
  while (!stopped()) {
    if (out_of_grace() && !request.has_finished()) {
      return LeaveJob();
    }
    request.set_leaving(draining());
    const auto reply = OfNewestTerm(coordinator_->Call(
        &rpc::CoordinatorService::NextStep, request, AnswerWithin(kPollSeconds + kAnswerSeconds)));
    if (!reply.ok()) {  // the report is sent again, and counts once
      if (!IsTransient(reply.status()) && !stopped()) {
        return Annotate(reply.status(), "ask for the next step");
      }
      if (out_of_grace()) {
        request.clear_finished();
      }
      clock_.SleepFor(kRetryDelay);
      continue;
    }
    request.clear_finished();
    if (reply->join_again() && draining()) {
      return LeaveJob();
    }
    if (reply->job_over() || reply->join_again()) {
      LogInfo("{} {}", join.job_id(), reply->job_over() ? "is over" : "goes on with others");
      return reply->job_over() ? Next::kJoin : Next::kJoinAgain;
    }
    if (reply->has_work() && !draining()) {
      SetLogContext(join.job_id(), reply->work().step());
      watch.BeginStep();
      *request.mutable_finished() = job.RunStep(reply->work());
      watch.EndStep();
    }
  }
  return Next::kLeave;
}

Trainer::Next Trainer::LeaveJob() {
  absl::MutexLock lock(&mutex_);
  left_a_job_ = true;
  return Next::kLeave;
}

absl::StatusOr<std::unique_ptr<WorkerJob>> Trainer::MakeJob(const proto::JoinJobReply& join,
                                                            const WorkerJobOptions& options,
                                                            Cancellation& ends) {
  std::atomic<bool> left_behind = false;
  proto::JoinJobRequest question;
  question.set_job_id(join.job_id());
  question.set_incarnation(options.incarnation);
  const auto is_over = [&] {
    const auto reply = OfNewestTerm(coordinator_->Call(&rpc::CoordinatorService::JoinJob, question,
                                                       AnswerWithin(kAnswerSeconds)));
    return reply.ok() ? !reply->ready() || reply->run() != join.run() ||
                            reply->formation() != join.formation()
                      : !IsTransient(reply.status());
  };
  const auto end = [&] {
    left_behind = true;
    ends.Cancel(Cancelled("{} goes on with others", join.job_id()));
  };
  absl::StatusOr<std::unique_ptr<WorkerJob>> job;
  {
    RunWatch watch({.patience = kBetweenQuestions,
                    .interval = kBetweenQuestions,
                    .is_over = is_over,
                    .end = end},
                   clock_);
    watch.BeginStep();
    job = WorkerJob::Create(join, options, &metrics_, clock_);
  }
  return left_behind ? nullptr : std::move(job);
}

absl::StatusOr<Trainer::Next> Trainer::RunJob(const WorkerJobOptions& options) {
  if (options.stage_service != nullptr) {
    options.stage_service->Reset();
  }
  SHOAL_ASSIGN_OR_RETURN(const proto::JoinJobReply join, Join(options.incarnation));
  if (join.shut_down()) {
    return Next::kLeave;
  }
  SetLogContext(join.job_id());
  LogInfo("{} takes part in {}", options.name, join.job_id());
  WorkerJobOptions own = options;
  own.draw = [this, id = join.job_id(), run = join.run()](proto::DrawMicrobatchRequest request) {
    request.set_job_id(id);
    request.set_run(run);
    return OfNewestTerm(coordinator_->Call(&rpc::CoordinatorService::DrawMicrobatch, request,
                                           AnswerWithin(kAnswerSeconds)));
  };
  Cancellation ends_job;
  own.cancellation = &ends_job;
  const Cancellation::Listener stops(
      &cancellation_, [&ends_job](const absl::Status& why) { ends_job.Cancel(why); });
  metrics_.StartJob();
  SHOAL_ASSIGN_OR_RETURN(const auto job, MakeJob(join, own, ends_job));
  if (job == nullptr) {
    return Next::kJoinAgain;
  }
  const Cancellation::Listener ends(&ends_job,
                                    [&job](const absl::Status& why) { job->Cancel(why); });
  {
    absl::MutexLock lock(&mutex_);
    job_ = job.get();
    grace_ = absl::Seconds(job->grace_seconds());
  }
  const absl::StatusOr<Next> next = Loop(*job, join, options.incarnation);
  SetLogContext("");
  absl::MutexLock lock(&mutex_);
  job_ = nullptr;
  return next;
}

absl::Status Trainer::Run(const WorkerJobOptions& options, bool stays) {
  absl::StatusOr<Next> next;
  do {
    next = RunJob(options);
  } while (next.ok() && (*next == Next::kJoinAgain || (stays && *next == Next::kJoin)) &&
           !stopped() && !draining());
  absl::MutexLock lock(&mutex_);
  return stopped_ ? why_ : next.status();
}

}  // namespace shoal::worker
