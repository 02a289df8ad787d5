// One step: plan, begin, run, prepare, commit.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "server/coordinator/job/call_all.h"
#include "server/coordinator/job/job_run.h"
#include "server/coordinator/step/expected_pushes.h"
#include "server/coordinator/step/report_sum.h"
#include "server/coordinator/step/skipped_step.h"
#include "server/coordinator/step/step_timing.h"

namespace shoal::server {
namespace {

// A push counted wrongly or a worker that could not finish is rare and passes; what happens three
// times will not.
constexpr int64_t kMaxAttempts = 3;
// Attempts that end because a worker is lost are none of those.
constexpr int64_t kMaxLosses = 64;
// Of one step and of the validation before it, at most.
constexpr int64_t kAttemptsOfARun = 2 * (kMaxAttempts + kMaxLosses + 1);
constexpr absl::Duration kFirstStallNotice = absl::Seconds(60);

}  // namespace

void JobRun::OnPlanned(int64_t request, absl::StatusOr<plan::StepPlan> plan) {
  if (closed() || request != plan_requests_) {
    return;
  }
  const std::string what = NameOfWork(plan_requested_, plan_validates_);
  if (!plan.ok()) {
    Fail(fmt::format("cannot plan {}: {}", what, Message(plan.status())));
    return;
  }
  if (plan->targets <= 0) {
    Fail(fmt::format("no sample of {} has a token that loss is taken on", what));
    return;
  }
  SHOAL_CHECK(plan->workers.size() == plan_groups_);
  environment_.reached("planned");
  next_plan_ = *std::move(plan);
  if (phase_ == Phase::kPlanning) {
    OpenStep();
  }
}

void JobRun::OpenStep() {
  if (!replicas_.lost.empty()) {
    Recover();
    return;
  }
  validating_ = ValidationDue(version_);
  if (LacksReferences() && version_ > 0) {
    SaveAndFail(ReferencesGone(job_.reference_file));
    return;
  }
  if (AtEnd() && !validating_) {
    Finish(/*interrupted=*/false);
    return;
  }
  if (stop_requested_) {
    Finish(/*interrupted=*/true);
    return;
  }
  if (BeginMove()) {
    return;
  }
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    if (leaving_[worker]) {
      GoOnWithout(worker);
    }
  }
  if (!Regroup()) {
    WaitForWorkers();
    return;
  }
  if (const absl::Status reachable = CheckStages(); !reachable.ok()) {
    SaveAndFail(std::string(Message(reachable)));
    return;
  }
  SetState(LacksReferences() ? "taking references, " + job_.pairs->Progress() : "training");
  NumberStep();
  if (phase_ == Phase::kShort) {  // it was numbered when there were too few workers
    step_opened_ = environment_.clock.Now();
    environment_.metrics.OnPhase("", step_opened_);
  }
  phase_ = Phase::kPlanning;
  if (plan_requested_ != step_ || plan_validates_ != validating_ ||
      plan_groups_ != groups_.groups()) {
    RequestPlan(step_, validating_);
  }
  if (!next_plan_.has_value()) {
    return;
  }
  plan_ = *std::move(next_plan_);
  next_plan_.reset();
  predicted_idle_share_ = measurements_->PredictIdleShare(plan_);
  OpenAttempt();
}

// The one after the last commit, if it has none yet.
void JobRun::NumberStep() {
  if (step_ == version_ + 1) {
    return;
  }
  step_ = version_ + 1;
  SetLogContext(job_.id, validating_ ? version_ : step_);  // that one is of the step before
  step_opened_ = environment_.clock.Now();
  environment_.metrics.OnPhase("", step_opened_);
  // Earlier runs and lives had other numbers: what comes late of theirs fits nothing.
  const int64_t run = std::max(job_.run, FirstRunOf(environment_.term));
  attempt_ = std::max(run * kAttemptsOfARun, std::exchange(attempts_before_, 0));
  failures_ = losses_ = 0;
}

void JobRun::OpenAttempt() {
  phase_ = Phase::kBeginning;
  environment_.metrics.OnPhase("plan", environment_.clock.Now());
  reports_.assign(workers_.size(), std::nullopt);
  rounds_run_.assign(workers_.size(), 0);
  reported_at_.assign(workers_.size(), absl::Time());
  working_.assign(workers_.size(), true);
  redealt_.assign(groups_.groups(), {});
  slots_ = 0;
  ledger_.emplace(plan_, groups_.stages());
  draws_.reset();
  BeginAtServers([this, told = std::ssize(lost_workers_)] {
    if (phase_ == Phase::kBeginning) {
      lost_workers_.erase(lost_workers_.begin(), lost_workers_.begin() + told);
      OnBegun();
    }
  });
  // While servers clear their accumulators.
  work_.resize(workers_.size());
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    proto::StepWork& work = work_[worker];
    FillWork(work);
    if (DrawsMicrobatches()) {
      continue;  // StartDraws
    }
    const size_t group = groups_.GroupOf(worker);
    for (const plan::Microbatch& microbatch : plan_.workers[group]) {
      ledger_->Give(microbatch.number, static_cast<int>(group));
      FillMicrobatch(microbatch, *work.add_microbatches());
    }
  }
}

// Goes on with `then` unless another attempt has begun by then.
void JobRun::BeginAtServers(const std::function<void()>& then) {
  proto::BeginAttemptRequest request;
  request.set_run(job_.run);
  request.set_step(step_);
  request.set_attempt(++attempt_);
  request.set_generation(job_.shard_map.generation);
  request.set_trace(job_.trace && !validating_);
  request.mutable_lost_worker()->Assign(lost_workers_.begin(), lost_workers_.end());
  if (job_.job.train.synchronization == plan::Synchronization::kLayer) {
    for (const Member& worker : workers_) {
      request.add_barrier_worker(worker.incarnation);
    }
  }
  const auto begun = [this, then, step = step_, attempt = attempt_] {
    if (step == step_ && attempt == attempt_) {
      then();
    }
  };
  CallAll(
      &rpc::ParameterServerService::BeginAttempt, AttemptAt(request),
      [begun](const std::vector<proto::BeginAttemptReply>&) { begun(); }, OrWithoutLost(begun));
}

void JobRun::FillWork(proto::StepWork& work) {
  work.Clear();  // and keeps its memory: most of the next work is as large
  work.set_trace(job_.trace);
  work.set_step(step_);
  work.set_attempt(attempt_);
  work.set_generation(job_.shard_map.generation);
  work.set_minibatch_weight(plan_.weight);
  work.set_packs(ledger_->packs());
  work.set_slot(slots_++);
  work.set_validates(validating_);
  work.set_of_training(validating_ && LacksReferences() &&
                       !job_.pairs->WithoutReference()->of_validation);
}

void JobRun::OnBegun() {
  OnMapTold();
  if (DrawsMicrobatches()) {
    StartDraws();
  }
  phase_ = Phase::kRunning;
  next_stall_notice_ = environment_.clock.Now() + kFirstStallNotice;
  Change();
  if (validating_ || !measurements_->ShapePlans()) {
    RequestNextPlan();
  }
  for (size_t group = 0; phase_ == Phase::kRunning && group < groups_.groups(); ++group) {
    if (!IsWhole(group)) {  // since servers began
      HandOver(group);
    }
  }
  if (IsToMove()) {  // behind all that workers wait for
    environment_.plan([this] { environment_.post([this] { PlanWaveAhead(); }); });
  }
}

absl::Status JobRun::TakeResults(
    size_t worker, const google::protobuf::RepeatedPtrField<proto::PackResult>& results) {
  for (const proto::PackResult& result : results) {
    const absl::Status taken =
        ledger_->Done(static_cast<int>(groups_.GroupOf(worker)), groups_.StageOf(worker),
                      {.number = result.number(),
                       .loss_sum = result.loss_sum(),
                       .tokens = result.tokens(),
                       .targets = result.targets(),
                       .log_probabilities = {result.log_probabilities().begin(),
                                             result.log_probabilities().end()},
                       .references = {result.references().begin(), result.references().end()}});
    if (!taken.ok()) {
      return Annotate(taken, names_[worker]);
    }
  }
  return absl::OkStatus();
}

void JobRun::TakeReport(size_t worker, const proto::FinishedReport& report) {
  const bool current = phase_ == Phase::kRunning && report.step() == step_ &&
                       report.attempt() == attempt_ && report.round() == work_[worker].round();
  if (!current || !working_[worker]) {
    // Of an attempt that was dropped, or a repetition of one that was taken.
    environment_.metrics.late_reports.Increment();
    if (report.failed()) {
      LogDebug("{} could not finish an attempt that is over: {}", names_[worker], report.message());
    }
    return;
  }
  if (report.failed()) {
    OnFailedReport(worker, report);
    return;
  }
  if (const absl::Status taken = TakeResults(worker, report.packs()); !taken.ok()) {
    DropAttempt(taken);
    return;
  }
  environment_.reached("reported");
  AddRound(report, reports_[worker]);
  last_steps_.resize(workers_.size());
  TakeConnections(report, last_steps_[worker]);
  rounds_run_[worker] += report.packs().empty() ? 0 : 1;
  reported_at_[worker] = environment_.clock.Now();
  working_[worker] = false;
  if (leaving_[worker]) {
    return;  // LetGo
  }
  if (const absl::Status ran = CheckPacksRun(worker);
      !ran.ok() && !SHOAL_PLANTED("report-unchecked")) {
    DropAttempt(ran);
    return;
  }
  const size_t group = groups_.GroupOf(worker);
  if (draws_.has_value() && draws_->Left(static_cast<int>(group)) == 0) {
    draws_->Retire(static_cast<int>(group));
  }
  StartRound(group);
  EndOfRounds();
}

// A worker has run what it was given; and with the last of its group, so have the others, one of
// which may have said that a neighbour kept it from that.
absl::Status JobRun::CheckPacksRun(size_t reporter) const {
  const size_t group = groups_.GroupOf(reporter);
  for (size_t stage = 0; stage < groups_.stages(); ++stage) {
    const size_t worker = groups_.WorkerAt(group, stage);
    const int64_t left =
        ledger_->Left(static_cast<int>(group), stage) - std::ssize(redealt_[group]);
    if ((worker == reporter || !GroupWorks(group)) && left > 0) {
      return Aborted("{} has not run {} of the packs that it was given", names_[worker], left);
    }
  }
  return absl::OkStatus();
}

void JobRun::OnFailedReport(size_t worker, const proto::FinishedReport& report) {
  if (leaving_[worker]) {
    return;  // LetGo
  }
  working_[worker] = !report.by_neighbour();
  if (!report.by_neighbour() || !GroupWorks(groups_.GroupOf(worker))) {
    DropAttempt(Aborted("{} could not finish: {}", names_[worker], report.message()));
  }
}

void JobRun::DropAttempt(const absl::Status& reason) {
  environment_.metrics.dropped_attempts.Increment();
  if (++failures_ >= kMaxAttempts) {
    SaveAndFail(fmt::format("{} failed {} times, the last time because {}",
                            NameOfWork(step_, validating_), failures_, Message(reason)));
    return;
  }
  OpenAgain(std::string(Message(reason)));
}

// The next attempt of the step, with the workers that there are now.
void JobRun::OpenAgain(const std::string& reason) {
  LogWarning("{} attempt {} is dropped and begins again: {}", NameOfWork(step_, validating_),
             attempt_, reason);
  Record(
      {{"event", "attempt_dropped"}, {"step", step_}, {"attempt", attempt_}, {"reason", reason}});
  if (present() == std::ssize(workers_)) {
    OpenAttempt();
    return;
  }
  plan_requested_ = 0;  // what was planned was for the workers of the last attempt
  OpenStep();
}

void JobRun::DropForMembers(const std::string& reason) {
  environment_.metrics.dropped_attempts.Increment();
  if (++losses_ > kMaxLosses) {
    SaveAndFail(fmt::format("{} lost workers in {} attempts, the last time because {}",
                            NameOfWork(step_, validating_), losses_, reason));
    return;
  }
  OpenAgain(reason);
}

void JobRun::MeasurePaces() {
  std::vector<double> busy_seconds;
  for (const auto& report : reports_) {
    busy_seconds.push_back(report.has_value() ? report->busy_seconds() : 0);
  }
  for (size_t group = 0; group < groups_.groups(); ++group) {
    if (const auto& report = reports_[groups_.PaceOf(group, busy_seconds)]; report.has_value()) {
      measurements_->Add(static_cast<int>(group), *report);
    }
  }
  measurements_->Refit();
}

void JobRun::PrepareStep() {
  phase_ = Phase::kPreparing;
  environment_.metrics.OnPhase("compute", environment_.clock.Now());
  MeasurePaces();
  RequestNextPlan();
  proto::PrepareRequest request;
  request.set_step(step_);
  request.set_attempt(attempt_);
  CallAll(
      &rpc::ParameterServerService::Prepare, [request](int) { return request; },
      [this](const std::vector<proto::PrepareReply>& replies) { OnPrepared(replies); });
}

absl::StatusOr<StepTotals> JobRun::TotalOfStep(
    const std::vector<proto::PrepareReply>& replies) const {
  std::vector<PushedWork> works;
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    const size_t stage = groups_.StageOf(worker);
    works.push_back({.stage = stage,
                     .rank = static_cast<int>(worker),
                     .how = pushes_[worker],
                     .packs = ledger_->Ran(static_cast<int>(groups_.GroupOf(worker)), stage),
                     .rounds = rounds_run_[worker]});
  }
  const ExpectedPushes expected(job_.pushes, works, static_cast<int>(workers_.size()));
  return Total(ledger_->LossSum(), replies, expected, job_.shard_map, plan_.weight);
}

void JobRun::OnPrepared(const std::vector<proto::PrepareReply>& replies) {
  SHOAL_CHECK(phase_ == Phase::kPreparing);
  environment_.reached("sealed");
  const absl::StatusOr<StepTotals> totals = TotalOfStep(replies);
  if (!totals.ok()) {
    if (stop_requested_) {
      Finish(/*interrupted=*/true);
    } else {
      DropAttempt(totals.status());
    }
    return;
  }
  if (!NonFinite(*totals).empty()) {
    environment_.metrics.nonfinite_steps.Increment();
  }
  const plan::SkipStepOptions& options = job_.job.train.skip_step;
  if (const std::string why = WhyFatal(options, norms_, *totals); !why.empty()) {
    SaveAndFail(
        fmt::format("step {} was not committed: {}; lower train.learning_rate, or look at the data",
                    step_, why),
        /*non_finite=*/true);
    return;
  }
  Replicate([this, totals = *totals, skipped = WhySkipped(options, norms_, *totals)] {
    CommitStep(totals, skipped);
  });
}

void JobRun::CommitStep(const StepTotals& totals, const std::string& skipped) {
  phase_ = Phase::kCommitting;
  environment_.metrics.OnPhase("prepare", environment_.clock.Now());
  const double learning_rate = job_.steps->LearningRate(step_);
  proto::StepEvent event = DescribeCommit(totals, learning_rate);
  event.set_skipped(skipped);
  *event.mutable_norms() =
      AddStep(job_.job.train.skip_step, norms_, totals.grad_norm, !skipped.empty());
  const CommitRecord record = {
      .step = step_,
      .attempt = attempt_,
      .learning_rate = learning_rate,
      .clip_coefficient = ClipCoefficient(job_.job.train.clip_norm, totals.grad_norm),
      .generation = job_.shard_map.generation,
      .event = std::move(event)};
  // Before any server hears of it: from here on the step is committed, and a half-done commit is
  // completed from this; in etcd, which is written behind the step, or from a server that has heard
  // (docs/decisions/0019-coordinators-stand-by-over-etcd.md).
  const absl::Status recorded = SHOAL_PLANTED("commit-unrecorded")
                                    ? absl::OkStatus()
                                    : environment_.store.RecordCommit(job_.id, record);
  if (EndsBySuccessor(recorded)) {
    return;
  }
  if (!recorded.ok() && !SHOAL_PLANTED("record-ignored")) {
    Fail(fmt::format("step {} was not committed: {}", step_, Message(recorded)));
    return;
  }
  environment_.reached("recorded");
  CallAll(
      &rpc::ParameterServerService::Commit,
      [request = CommitRequestOf(record)](int) { return request; },
      [this, event = record.event](const std::vector<proto::CommitReply>& replies) {
        OnCommitted(replies, event);
      },
      OrWithoutLost([this, event = record.event] { OnCommitted({}, event); }));
}

void JobRun::OnCommitted(const std::vector<proto::CommitReply>& replies,
                         const proto::StepEvent& committed) {
  SHOAL_CHECK(phase_ == Phase::kCommitting);
  for (size_t server = 0; server < replies.size(); ++server) {
    if (replies[server].version() != step_) {
      Fail(fmt::format("{} published version {} in the commit of step {}", NameOf(servers_[server]),
                       replies[server].version(), step_));
      return;
    }
  }
  version_ = step_;
  environment_.metrics.OnPhase("commit", environment_.clock.Now());
  TakeCommitted(committed);
  TellStep(committed, replies);
  AfterCommit();
}

}  // namespace shoal::server
