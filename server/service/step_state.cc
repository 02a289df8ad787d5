#include "server/service/step_state.h"

#include "core/base/status.h"
#include "core/base/testing/planted.h"

namespace shoal::server {

std::string StepState::Describe() const {
  switch (phase_) {
    case Phase::kReady:
      return fmt::format("version {} is published and no attempt is open", version_);
    case Phase::kOpen:
      return fmt::format("step {} attempt {} is open", step_, attempt_);
    case Phase::kSealed:
      return fmt::format("step {} attempt {} is sealed", step_, attempt_);
    case Phase::kFailed:
      return fmt::format("step {} attempt {} failed when it was sealed", step_, attempt_);
    case Phase::kCommitting:
      return fmt::format("step {} attempt {} is being committed", step_, attempt_);
  }
  return "?";
}

absl::StatusOr<Decision> StepState::BeginAttempt(int64_t step, int64_t attempt,
                                                 int64_t generation) const {
  if (generation != generation_) {
    return FailedPrecondition(
        "BeginAttempt of step {} is for shard map generation {}, this server has {}", step,
        generation, generation_);
  }
  if (step != version_ + 1 || attempt < 1) {
    return FailedPrecondition("cannot begin step {} attempt {}: {}, so the next step is {}", step,
                              attempt, Describe(), version_ + 1);
  }
  if (step == step_) {
    if (attempt < attempt_) {
      return FailedPrecondition("cannot begin step {} attempt {}: {}", step, attempt, Describe());
    }
    if (attempt == attempt_) {
      if (phase_ == Phase::kOpen) {
        return Decision::kRepeat;
      }
      return FailedPrecondition("cannot begin step {} attempt {} again: {}", step, attempt,
                                Describe());
    }
  }
  return Decision::kExecute;
}

void StepState::Moved(int64_t generation, int64_t version) {
  generation_ = generation;
  version_ = version;
}

void StepState::Opened(int64_t step, int64_t attempt) {
  phase_ = Phase::kOpen;
  step_ = step;
  attempt_ = attempt;
}

absl::StatusOr<Decision> StepState::Prepare(int64_t step, int64_t attempt) const {
  if (IsCurrentAttempt(step, attempt)) {
    if (phase_ == Phase::kOpen) {
      return Decision::kExecute;
    }
    if (phase_ == Phase::kSealed) {
      return Decision::kRepeat;
    }
  }
  return FailedPrecondition("cannot prepare step {} attempt {}: {}", step, attempt, Describe());
}

absl::StatusOr<Decision> StepState::Commit(int64_t step, int64_t attempt) const {
  if (IsCurrentAttempt(step, attempt)) {
    if (phase_ == Phase::kSealed) {
      return Decision::kExecute;
    }
    if (phase_ == Phase::kReady) {
      return SHOAL_PLANTED("commit-twice") ? Decision::kExecute : Decision::kRepeat;
    }
  }
  return FailedPrecondition("cannot commit step {} attempt {}: {}", step, attempt, Describe());
}

void StepState::Committed() {
  phase_ = Phase::kReady;
  version_ = step_;
}

}  // namespace shoal::server
