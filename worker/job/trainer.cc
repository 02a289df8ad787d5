#include "worker/job/trainer.h"

#include <atomic>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/rpc/coordinator_service.h"
#include "worker/job/run_watch.h"

namespace shoal::worker {
namespace {

constexpr int kAnswerSeconds = 5;  // for the answer itself
// Whether a job that is being made is still this worker's. Answers may be large.
constexpr absl::Duration kBetweenQuestions = absl::Seconds(5);

constexpr rpc::CallOptions kAnswer = {.deadline = absl::Seconds(kAnswerSeconds)};
constexpr rpc::CallOptions kPollAnswer = {
    .deadline = absl::Seconds(WorkerCore::kPollSeconds + kAnswerSeconds)};

}  // namespace

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
      core_->Drain(clock_.Now() + grace_);
      job_->Drain();
      return;
    }
    if (core_.has_value() && !stopped_) {
      core_->DrainNow();
    }
  }
  Stop(why);
}

bool Trainer::out_of_grace() const {
  absl::MutexLock lock(&mutex_);
  return core_->out_of_grace(clock_.Now());
}

bool Trainer::left_a_job() const {
  absl::MutexLock lock(&mutex_);
  return core_.has_value() && core_->left_a_job();
}

WorkerCore::What Trainer::Next() {
  absl::MutexLock lock(&mutex_);
  return stopped_ ? WorkerCore::What::kLeave : core_->Next(clock_.Now());
}

void Trainer::Join(const WorkerJobOptions& options) {
  if (options.stage_service != nullptr) {
    options.stage_service->Reset();
  }
  while (Next() == WorkerCore::What::kJoin) {
    AskToJoin();
  }
}

void Trainer::AskToJoin() {
  const auto reply =
      coordinator_->Call(&rpc::CoordinatorService::JoinJob, core_->join_question(), kPollAnswer);
  {
    absl::MutexLock lock(&mutex_);
    core_->OnJoined(reply);
  }
  clock_.SleepFor(core_->pause());
}

bool Trainer::Make(const WorkerJobOptions& options, Cancellation& ends,
                   const std::function<absl::Status()>& make) {
  std::atomic<bool> left_behind = false;
  const auto is_over = [&] {
    return core_->IsLeftBehind(coordinator_->Call(&rpc::CoordinatorService::JoinJob,
                                                  core_->left_behind_question(options.incarnation),
                                                  kAnswer));
  };
  const auto end = [&] {
    left_behind = true;
    ends.Cancel(Cancelled("{} goes on with others", core_->join().job_id()));
  };
  absl::Status made;
  {
    RunWatch watch({.patience = kBetweenQuestions,
                    .interval = kBetweenQuestions,
                    .is_over = is_over,
                    .end = end},
                   clock_);
    watch.BeginStep();
    made = make();
  }
  // What it was told may be older than what servers know by now.
  left_behind = left_behind || (!made.ok() && ends.status().ok() && is_over());
  absl::MutexLock lock(&mutex_);
  if (left_behind) {
    core_->OnLeftBehind();
  } else if (!made.ok()) {
    core_->Fail(made);
  }
  return made.ok() && !left_behind;
}

void Trainer::SetJob(WorkerJob* job) {
  absl::MutexLock lock(&mutex_);
  job_ = job;
  if (job != nullptr) {
    core_->OnMade(job->pushes());
    grace_ = absl::Seconds(job->grace_seconds());
  }
}

bool Trainer::StaysPart(const WorkerJobOptions& options, Cancellation& ends, WorkerJob& job) {
  SetJob(nullptr);
  if (job.knows_others() || !core_->has_part()) {
    return false;
  }
  if (Next() == WorkerCore::What::kJoin) {
    AskToJoin();
  }
  return Next() == WorkerCore::What::kMake && job.IsStill(core_->join()) &&
         Make(options, ends, [&] { return job.Reattach(core_->join()); });
}

void Trainer::TakePart(const WorkerJobOptions& options) {
  const proto::JoinJobReply& join = core_->join();
  SetLogContext(join.job_id());
  LogInfo("{} takes part in {}", options.name, join.job_id());
  WorkerJobOptions own = options;
  own.draw = [this, id = join.job_id(), run = join.run()](proto::DrawMicrobatchRequest request) {
    request.set_job_id(id);
    request.set_run(run);
    return core_->OfNewestTerm(
        coordinator_->Call(&rpc::CoordinatorService::DrawMicrobatch, request, kAnswer));
  };
  Cancellation ends_job;
  own.cancellation = &ends_job;
  const Cancellation::Listener stops(
      &cancellation_, [&ends_job](const absl::Status& why) { ends_job.Cancel(why); });
  metrics_.StartJob();
  std::unique_ptr<WorkerJob> job;
  if (!Make(own, ends_job, [&]() -> absl::Status {
        SHOAL_ASSIGN_OR_RETURN(job, WorkerJob::Create(join, own, &metrics_, clock_));
        return absl::OkStatus();
      })) {
    return;
  }
  const Cancellation::Listener ends(&ends_job,
                                    [&job](const absl::Status& why) { job->Cancel(why); });
  do {
    SetJob(job.get());
    RunSteps(*job);
  } while (StaysPart(own, ends_job, *job));
  SetLogContext("");
}

void Trainer::RunSteps(WorkerJob& job) {
  const auto is_over = [this, question = core_->over_question()] {
    return out_of_grace() ||
           core_->IsOver(coordinator_->Call(&rpc::CoordinatorService::NextStep, question, kAnswer));
  };
  RunWatch watch({.lacks_server = [&job] { return job.LacksServer(); },
                  .is_over = is_over,
                  .end = [&job] { job.Cancel(Cancelled("nobody waits for the step")); }},
                 clock_);
  while (true) {
    switch (Next()) {
      case WorkerCore::What::kAsk:
        Ask();
        break;
      case WorkerCore::What::kRun: {
        SetLogContext(core_->join().job_id(), core_->work().step());
        watch.BeginStep();
        proto::FinishedReport report = job.RunStep(core_->work());
        watch.EndStep();
        absl::MutexLock lock(&mutex_);
        core_->OnRan(std::move(report));
        break;
      }
      default:
        return;
    }
  }
}

void Trainer::Ask() {
  proto::NextStepRequest question;
  {
    absl::MutexLock lock(&mutex_);
    question = core_->question();
  }
  const auto reply = coordinator_->Call(&rpc::CoordinatorService::NextStep, question, kPollAnswer);
  {
    absl::MutexLock lock(&mutex_);
    core_->OnAnswered(reply, clock_.Now());
  }
  clock_.SleepFor(core_->pause());
}

absl::Status Trainer::Run(const WorkerJobOptions& options, bool stays) {
  {
    absl::MutexLock lock(&mutex_);
    core_.emplace(options.incarnation, stays);
  }
  while (true) {
    switch (Next()) {
      case WorkerCore::What::kJoin:
        Join(options);
        break;
      case WorkerCore::What::kMake:
        TakePart(options);
        break;
      default:
        absl::MutexLock lock(&mutex_);
        return stopped_ ? why_ : core_->end();
    }
  }
}

}  // namespace shoal::worker
