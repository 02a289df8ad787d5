// Steps where workers draw their microbatches one by one.
#include "core/base/status.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {

bool JobRun::DrawsMicrobatches() const {
  return job_.job.plan.assignment == plan::Assignment::kDynamic &&
         job_.job.train.synchronization == plan::Synchronization::kStep;
}

// Each worker begins with its first microbatch at hand.
void JobRun::StartDraws() {
  draws_.emplace(measurements_->MakeDrawQueue(plan_));
  draws_->Start(absl::ToDoubleSeconds(environment_.clock.Now() - step_opened_));
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    work_[worker].clear_microbatches();
    work_[worker].set_draw(true);
    for (const plan::Microbatch* first : draws_->Given(static_cast<int>(worker))) {
      work_[worker].add_microbatches()->mutable_samples()->Assign(first->samples.begin(),
                                                                  first->samples.end());
    }
  }
}

absl::StatusOr<proto::DrawMicrobatchReply> JobRun::Draw(
    const proto::DrawMicrobatchRequest& request) {
  proto::DrawMicrobatchReply reply;
  reply.set_term(environment_.term);
  reply.set_none(true);
  if (over()) {
    return reply;  // NextStep tells the worker so.
  }
  const std::optional<size_t> worker = WorkerOf(request.incarnation());
  if (!worker.has_value()) {
    return FailedPrecondition("incarnation {:016x} draws a microbatch of a job it has no part in",
                              request.incarnation());
  }
  if (!draws_.has_value() || phase_ != Phase::kRunning || request.run() != job_.run ||
      request.step() != step_ || request.attempt() != attempt_) {
    return Aborted("{} draws a microbatch of step {} attempt {}; {} {} attempt {}",
                   participants_[*worker].name, request.step(), request.attempt(),
                   draws_.has_value() ? "at hand is step" : "none are drawn in step", step_,
                   attempt_);
  }
  if (reports_[*worker].has_value()) {
    return reply;  // It said that it was done.
  }
  SHOAL_ASSIGN_OR_RETURN(
      const plan::Microbatch* drawn,
      draws_->Draw(static_cast<int>(*worker), request.number(),
                   absl::ToDoubleSeconds(environment_.clock.Now() - step_opened_),
                   request.ahead_seconds()));
  if (drawn != nullptr) {
    reply.set_none(false);
    reply.mutable_microbatch()->mutable_samples()->Assign(drawn->samples.begin(),
                                                          drawn->samples.end());
  }
  return reply;
}

absl::Status JobRun::CheckGiven(size_t worker, const proto::FinishedReport& report) const {
  GivenWork given;
  if (draws_.has_value()) {
    const int index = static_cast<int>(worker);
    if (draws_->Left(index) > 0) {
      return Aborted("{} reports before it has drawn {} microbatches that wait for it",
                     participants_[worker].name, draws_->Left(index));
    }
    for (const plan::Microbatch* microbatch : draws_->Given(index)) {
      given.Add(*microbatch);
    }
  } else {
    for (const plan::Microbatch& microbatch : plan_.workers[groups_.GroupOf(worker)]) {
      given.Add(microbatch);
    }
  }
  return CheckReport(report, given, static_cast<int>(servers_.size()), participants_[worker]);
}

}  // namespace shoal::server
