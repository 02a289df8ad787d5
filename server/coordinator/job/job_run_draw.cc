// Steps where workers draw their microbatches one by one.
#include "core/base/status.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {

void JobRun::FillMicrobatch(const plan::Microbatch& microbatch,
                            proto::MicrobatchWork& message) const {
  message.mutable_samples()->Assign(microbatch.samples.begin(), microbatch.samples.end());
  message.set_number(microbatch.number);
  if (job_.pairs != nullptr) {
    job_.pairs->AddReferences(validating_, message);
  }
}

bool JobRun::DrawsMicrobatches() const {
  return !validating_ && job_.job.plan.assignment == plan::Assignment::kDynamic &&
         job_.job.train.synchronization == plan::Synchronization::kStep;
}

// Each worker begins with its first microbatch at hand.
void JobRun::StartDraws() {
  draws_.emplace(measurements_->MakeDrawQueue(plan_));
  draws_->Start(absl::ToDoubleSeconds(environment_.clock.Now() - step_opened_));
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    work_[worker].set_draw(true);
    for (const plan::Microbatch* first : draws_->Given(static_cast<int>(worker))) {
      ledger_->Give(first->number, static_cast<int>(worker));
      FillMicrobatch(*first, *work_[worker].add_microbatches());
    }
  }
}

absl::StatusOr<proto::DrawMicrobatchReply> JobRun::Draw(
    const proto::DrawMicrobatchRequest& request) {
  proto::DrawMicrobatchReply reply;
  reply.set_term(environment_.term);
  reply.set_none(true);
  if (closed()) {
    return reply;  // NextStep tells the worker so.
  }
  const std::optional<size_t> worker = WorkerOf(request.incarnation());
  if (!worker.has_value()) {
    return FailedPrecondition("incarnation {:016x} draws a microbatch of a job it has no part in",
                              request.incarnation());
  }
  if (!draws_.has_value() || phase_ != Phase::kRunning || request.run() != job_.run ||
      request.step() != step_ || request.attempt() != attempt_ || absent_[*worker] ||
      request.round() != work_[*worker].round()) {
    return Aborted("{} draws a microbatch of step {} attempt {}; {} {} attempt {}", names_[*worker],
                   request.step(), request.attempt(),
                   draws_.has_value() ? "at hand is step" : "none are drawn in step", step_,
                   attempt_);
  }
  if (!working_[*worker]) {
    return reply;  // It said that it was done.
  }
  if (const absl::Status taken = TakeResults(*worker, request.done()); !taken.ok()) {
    return taken;
  }
  SHOAL_ASSIGN_OR_RETURN(
      const plan::Microbatch* drawn,
      draws_->Draw(static_cast<int>(*worker), request.number(),
                   absl::ToDoubleSeconds(environment_.clock.Now() - step_opened_),
                   request.ahead_seconds()));
  if (drawn != nullptr) {
    ledger_->Give(drawn->number, static_cast<int>(*worker));
    reply.set_none(false);
    FillMicrobatch(*drawn, *reply.mutable_microbatch());
  }
  return reply;
}

}  // namespace shoal::server
