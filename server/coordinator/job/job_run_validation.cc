// Validation: between two steps the workers take the loss of samples that are not trained on. It
// runs as an attempt of the step to come, through the same ledger, in which nothing is pushed; that
// step's own attempts follow it. Before step 1 the references of pairs are taken in the same way, a
// part after the other.
#include <cmath>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/coordinator/job/job_run.h"
#include "server/coordinator/step/validation.h"

namespace shoal::server {

bool JobRun::AtEnd() const {
  return version_ >= job_.last_step || EndsEarly(validation_, job_.job.train.early_stop);
}

bool JobRun::IsValidated(int64_t version) const {
  return validation_.has_value() && validation_->step() >= version;
}

bool JobRun::LacksReferences() const {
  return job_.pairs != nullptr && (validating_ || !AtEnd()) &&
         job_.pairs->WithoutReference().has_value();
}

bool JobRun::ValidationDue(int64_t version) const {
  return !stop_requested_ &&
         (LacksReferences() || (!IsValidated(version) &&
                                job_.job.data.validation.DueAfter(version, job_.job.train.steps)));
}

std::string JobRun::NameOfWork(int64_t step, bool validates) const {
  return !validates          ? fmt::format("step {}", step)
         : LacksReferences() ? "the forward pass before step 1"
                             : fmt::format("the validation after step {}", step - 1);
}

void JobRun::RequestFirstPlan() {
  const bool validates = ValidationDue(version_);
  if (validates || !AtEnd()) {
    RequestPlan(version_ + 1, validates);
  }
}

// Once the plan of what is at hand is taken.
void JobRun::RequestNextPlan() {
  if (plan_requested_ != step_ || plan_validates_ != validating_ || LacksReferences()) {
    return;
  }
  const int64_t next = validating_ ? step_ : step_ + 1;
  const bool validates = !validating_ && ValidationDue(step_);
  if (validates || next <= job_.last_step) {
    RequestPlan(next, validates);
  }
}

// What is lost of them when it cannot be kept is more than the job can go on without.
void JobRun::TakeReferences() {
  if (const absl::Status taken = job_.pairs->TakeReferences(plan_, *ledger_); !taken.ok()) {
    SaveAndFail(fmt::format("{}: {}", NameOfWork(step_, validating_), Message(taken)),
                /*non_finite=*/true);
    return;
  }
  environment_.disk([this, keep = job_.keep_references, references = job_.pairs->references()] {
    const absl::Status kept = keep(references);
    if (!kept.ok()) {
      environment_.post([this, kept] { Fail(std::string(Message(kept))); });
    }
  });
  plan_requested_ = 0;  // what comes next is another part
  validating_ = false;
  phase_ = Phase::kPlanning;
  attempts_before_ = attempt_;
  step_ = version_;
  AfterCommit();
}

void JobRun::EndValidation() {
  if (!ledger_->done()) {
    DropAttempt(Internal("not all packs were run"));
    return;
  }
  if (LacksReferences()) {
    TakeReferences();
    return;
  }
  const absl::Time now = environment_.clock.Now();
  environment_.metrics.OnPhase("validation", now);
  proto::ValidationEvent result;
  result.set_step(version_);
  result.set_loss(ledger_->LossSum() / plan_.weight);
  result.set_tokens(plan_.tokens);
  result.set_target_tokens(plan_.targets);
  result.set_seconds(absl::ToDoubleSeconds(now - step_opened_));
  if (job_.pairs != nullptr) {
    *result.mutable_preference() = job_.pairs->Measure(plan_, *ledger_, /*of_validation=*/true);
  }
  if (!std::isfinite(result.loss())) {
    SaveAndFail(fmt::format("the validation after step {} has the loss {}; lower "
                            "train.learning_rate, or look at the data",
                            version_, result.loss()),
                /*non_finite=*/true);
    return;
  }
  Judge(validation_, job_.job.train.early_stop.minimum_change, result);
  validation_ = result;
  Log(environment_.store.SaveRun(job_.id, DescribeRun(), /*begins=*/false));
  TellValidation();
  validating_ = false;
  phase_ = Phase::kPlanning;  // no attempt is open
  attempts_before_ = attempt_;
  step_ = version_;  // the step to come is still to be opened
  AfterCommit();
}

void JobRun::TellValidation() {
  environment_.metrics.OnValidation(*validation_);
  std::vector<proto::JobEvent> events = TakeTraces();
  *events.emplace_back().mutable_validation() = *validation_;
  Append(std::move(events));
}

// What an earlier life knew of it.
void JobRun::TakeOverValidation(const proto::SavedRun& saved) {
  if (!saved.has_validation() || saved.validation().step() > version_ ||
      IsValidated(saved.validation().step())) {
    return;
  }
  validation_ = saved.validation();
  int64_t told = -1;
  for (const proto::JobEvent& event : events_->After(0)) {
    told = event.has_validation() ? event.validation().step() : told;
  }
  if (told < validation_->step()) {
    TellValidation();
  }
}

void JobRun::RequestPlan(int64_t step, bool of_validation) {
  plan_requested_ = step;
  plan_validates_ = of_validation;
  plan_groups_ = groups_.groups();
  next_plan_.reset();
  const auto part =
      of_validation && LacksReferences() ? job_.pairs->WithoutReference() : std::nullopt;
  environment_.plan([this, step, of_validation, part, request = ++plan_requests_,
                     inputs = measurements_->Inputs()] {
    auto plan = part.has_value()
                    ? job_.steps->PlanForward(part->of_validation, part->first, part->count, inputs)
                : of_validation ? job_.steps->PlanValidation(inputs)
                                : job_.steps->Plan(step, inputs);
    environment_.post([this, request, plan = std::move(plan)] { OnPlanned(request, plan); });
  });
}

}  // namespace shoal::server
