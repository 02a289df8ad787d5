// One step: plan, begin, run, prepare, commit.
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {
namespace {

// A push counted wrongly or a worker that could not finish is rare and passes; what happens three
// times will not.
constexpr int64_t kMaxAttempts = 3;
constexpr absl::Duration kFirstStallNotice = absl::Seconds(60);

proto::StepWork MakeWork(int64_t step, int64_t attempt, int64_t generation, int64_t targets,
                         bool trace, const std::vector<plan::Microbatch>& microbatches) {
  proto::StepWork work;
  work.set_trace(trace);
  work.set_step(step);
  work.set_attempt(attempt);
  work.set_generation(generation);
  work.set_minibatch_targets(targets);
  for (const plan::Microbatch& microbatch : microbatches) {
    auto* message = work.add_microbatches();
    message->mutable_samples()->Assign(microbatch.samples.begin(), microbatch.samples.end());
  }
  return work;
}

}  // namespace

void JobRun::RequestPlan(int64_t step) {
  plan_requested_ = step;
  next_plan_.reset();
  environment_.plan([this, step, inputs = measurements_->Inputs()] {
    auto plan = job_.steps->Plan(step, inputs);
    environment_.post([this, step, plan = std::move(plan)] { OnPlanned(step, plan); });
  });
}

void JobRun::OnPlanned(int64_t step, absl::StatusOr<plan::StepPlan> plan) {
  if (over()) {
    return;
  }
  SHOAL_CHECK(step == plan_requested_);
  if (!plan.ok()) {
    Fail(fmt::format("cannot plan step {}: {}", step, Message(plan.status())));
    return;
  }
  if (plan->targets <= 0) {
    Fail(fmt::format("no sample of step {} has a token that loss is taken on", step));
    return;
  }
  SHOAL_CHECK(plan->workers.size() == groups_.groups());
  next_plan_ = *std::move(plan);
  if (phase_ == Phase::kPlanning) {
    OpenStep();
  }
}

void JobRun::OpenStep() {
  if (version_ >= job_.last_step) {
    Finish(/*interrupted=*/false);
    return;
  }
  if (stop_requested_) {
    Finish(/*interrupted=*/true);
    return;
  }
  if (step_ != version_ + 1) {
    step_ = version_ + 1;
    step_opened_ = environment_.clock.Now();
  }
  SHOAL_CHECK(plan_requested_ == step_);
  if (!next_plan_.has_value()) {
    phase_ = Phase::kPlanning;
    return;
  }
  plan_ = *std::move(next_plan_);
  predicted_idle_share_ = measurements_->PredictIdleShare(plan_);
  attempt_ = 0;
  OpenAttempt();
}

void JobRun::OpenAttempt() {
  phase_ = Phase::kBeginning;
  ++attempt_;
  reports_.assign(workers_.size(), std::nullopt);
  reported_at_.assign(workers_.size(), absl::Time());
  draws_.reset();
  proto::BeginAttemptRequest request;
  request.set_step(step_);
  request.set_attempt(attempt_);
  request.set_generation(job_.shard_map.generation);
  if (job_.job.train.synchronization == plan::Synchronization::kLayer) {
    for (const Member& worker : workers_) {
      request.add_barrier_worker(worker.incarnation);
    }
  }
  CallAll(
      &rpc::ParameterServerService::BeginAttempt, [request](int) { return request; },
      [this](const std::vector<proto::BeginAttemptReply>&) {
        if (phase_ == Phase::kBeginning) {
          OnBegun();
        }
      });
  // While servers clear their accumulators.
  work_.clear();
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    work_.push_back(MakeWork(step_, attempt_, job_.shard_map.generation, plan_.targets, job_.trace,
                             plan_.workers[groups_.GroupOf(worker)]));
  }
}

void JobRun::OnBegun() {
  if (DrawsMicrobatches()) {
    StartDraws();
  }
  phase_ = Phase::kRunning;
  next_stall_notice_ = environment_.clock.Now() + kFirstStallNotice;
  Change();
  if (!measurements_->ShapePlans()) {
    RequestNextPlan();
  }
}

void JobRun::RequestNextPlan() {
  if (step_ < job_.last_step && plan_requested_ == step_) {
    RequestPlan(step_ + 1);
  }
}

std::optional<proto::NextStepReply> JobRun::Next(const proto::NextStepRequest& request) {
  proto::NextStepReply reply;
  reply.set_term(environment_.term);
  if (over() || request.run() != job_.run) {
    reply.set_job_over(true);
    return reply;
  }
  const std::optional<size_t> worker = WorkerOf(request.incarnation());
  if (!worker.has_value()) {
    return std::nullopt;
  }
  if (request.has_finished()) {
    TakeReport(*worker, request.finished());
  }
  // Whoever has not reported the attempt gets its work, again if need be: the answer may have been
  // lost.
  if (phase_ == Phase::kRunning && !reports_[*worker].has_value()) {
    *reply.mutable_work() = work_[*worker];
    return reply;
  }
  return std::nullopt;
}

void JobRun::TakeReport(size_t worker, const proto::FinishedReport& report) {
  const bool current =
      phase_ == Phase::kRunning && report.step() == step_ && report.attempt() == attempt_;
  if (!current || reports_[worker].has_value()) {
    // Of an attempt that was dropped, or a repetition of one that was taken.
    environment_.metrics.late_reports.Increment();
    if (report.failed()) {
      LogDebug("{} could not finish an attempt that is over: {}", participants_[worker].name,
               report.message());
    }
    return;
  }
  if (report.failed()) {
    DropAttempt(Aborted("{} could not finish: {}", participants_[worker].name, report.message()));
    return;
  }
  if (const absl::Status agrees = CheckGiven(worker, report); !agrees.ok()) {
    DropAttempt(agrees);
    return;
  }
  if (draws_.has_value()) {
    draws_->Retire(static_cast<int>(worker));
  }
  reports_[worker] = report;
  reported_at_[worker] = environment_.clock.Now();
  for (const auto& taken : reports_) {
    if (!taken.has_value()) {
      return;
    }
  }
  PrepareStep();
}

void JobRun::DropAttempt(const absl::Status& reason) {
  environment_.metrics.dropped_attempts.Increment();
  if (attempt_ >= kMaxAttempts) {
    SaveAndFail(fmt::format("step {} failed {} times, the last time because {}", step_, attempt_,
                            Message(reason)));
    return;
  }
  LogWarning("step {} attempt {} is dropped and begins again: {}", step_, attempt_,
             Message(reason));
  OpenAttempt();
}

void JobRun::MeasurePaces() {
  std::vector<double> busy_seconds;
  for (const auto& report : reports_) {
    busy_seconds.push_back(report->busy_seconds());
  }
  for (size_t group = 0; group < groups_.groups(); ++group) {
    measurements_->Add(static_cast<int>(group), *reports_[groups_.PaceOf(group, busy_seconds)]);
  }
  measurements_->Refit();
}

void JobRun::PrepareStep() {
  phase_ = Phase::kPreparing;
  MeasurePaces();
  RequestNextPlan();
  proto::PrepareRequest request;
  request.set_step(step_);
  request.set_attempt(attempt_);
  CallAll(
      &rpc::ParameterServerService::Prepare, [request](int) { return request; },
      [this](const std::vector<proto::PrepareReply>& replies) { OnPrepared(replies); });
}

void JobRun::OnPrepared(const std::vector<proto::PrepareReply>& replies) {
  SHOAL_CHECK(phase_ == Phase::kPreparing);
  std::vector<proto::FinishedReport> reports;
  for (auto& report : reports_) {
    reports.push_back(*report);
  }
  if (const absl::Status agree = CheckPushes(reports, replies, participants_); !agree.ok()) {
    if (stop_requested_) {
      Finish(/*interrupted=*/true);
    } else {
      DropAttempt(agree);
    }
    return;
  }
  const auto totals = Total(reports, replies, job_.shard_map, plan_.targets);
  if (!totals.ok()) {
    Fail(fmt::format("step {}: {}", step_, Message(totals.status())));
    return;
  }
  if (const std::string what = NonFinite(*totals); !what.empty()) {
    environment_.metrics.nonfinite_steps.Increment();
    SaveAndFail(
        fmt::format("step {} was not committed: {}; lower train.learning_rate, or look at the data",
                    step_, what),
        /*non_finite=*/true);
    return;
  }
  CommitStep(*totals);
}

void JobRun::CommitStep(const StepTotals& totals) {
  phase_ = Phase::kCommitting;
  const CommitRecord record = {
      .step = step_,
      .attempt = attempt_,
      .learning_rate = job_.steps->LearningRate(step_),
      .clip_coefficient = ClipCoefficient(job_.job.train.clip_norm, totals.grad_norm),
      .generation = job_.shard_map.generation};
  // Before any server hears of it: from here on the step is committed, and a half-done commit is
  // completed from this.
  if (const absl::Status recorded = environment_.store.RecordCommit(job_.id, record);
      !recorded.ok()) {
    Fail(fmt::format("step {} was not committed: {}", step_, Message(recorded)));
    return;
  }
  proto::CommitRequest request;
  request.set_step(record.step);
  request.set_attempt(record.attempt);
  request.set_learning_rate(record.learning_rate);
  request.set_clip_coefficient(record.clip_coefficient);
  CallAll(
      &rpc::ParameterServerService::Commit, [request](int) { return request; },
      [this, totals, record](const std::vector<proto::CommitReply>& replies) {
        OnCommitted(replies, totals, record.learning_rate);
      });
}

void JobRun::OnCommitted(const std::vector<proto::CommitReply>& replies, const StepTotals& totals,
                         double learning_rate) {
  SHOAL_CHECK(phase_ == Phase::kCommitting);
  for (size_t server = 0; server < replies.size(); ++server) {
    if (replies[server].version() != step_) {
      Fail(fmt::format("{} published version {} in the commit of step {}", NameOf(servers_[server]),
                       replies[server].version(), step_));
      return;
    }
  }
  version_ = step_;
  last_loss_ = totals.loss;
  TellStep(totals, learning_rate);
  AfterCommit();
}

}  // namespace shoal::server
