#include "worker/job/worker_job.h"

#include <cmath>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "worker/job/peak_flops.h"

namespace shoal::worker {
absl::StatusOr<std::unique_ptr<WorkerJob>> WorkerJob::Create(const proto::JoinJobReply& join,
                                                             const WorkerJobOptions& options,
                                                             WorkerMetrics* metrics, Clock& clock) {
  std::unique_ptr<WorkerJob> job(new WorkerJob(join, clock));
  OpenedDevice opened;
  SHOAL_ASSIGN_OR_RETURN(
      job->context_, MakeJobContext(join, options, metrics, &clock, &job->time_kinds_, &opened));
  const JobContext& context = *job->context_;
  if (!context.job.emulate.enabled()) {
    const auto peak = MeasurePeakFlops(opened.compute_device, plan::ComputeDType(context.job));
    if (peak.ok()) {
      job->peak_flops_ = *peak;
      metrics->OnPeakFlops(*peak);
    } else {
      LogWarning("{}: no mfu is told: {}", options.name, Message(peak.status()));
    }
  }
  SHOAL_ASSIGN_OR_RETURN(job->transports_, OpenTransports(context, opened.reach));
  Attachment::Options& attached = job->attached_;
  attached = {.transports = &job->transports_,
              .transports_reach = opened.reach != nullptr,
              .open_collectives = opened.open_collectives};
  if (context.pipeline.has_value() && !context.job.emulate.enabled()) {
    SHOAL_ASSIGN_OR_RETURN(
        job->runner_,
        MakePipelineRunner(context, std::move(opened), job->transports_,
                           [job = job.get()] { return job->attachment_->CheckAttempt(); }));
  } else {
    SHOAL_ASSIGN_OR_RETURN(job->runner_, MakePlainRunner(context, std::move(opened)));
  }
  attached.device = job->runner_->device();
  attached.compute = job->runner_->compute();
  attached.contributions = job->runner_->Contributions();
  attached.on_unit_done = [runner = job->runner_.get()](int unit) { runner->OnUnitDone(unit); };
  SHOAL_RETURN_IF_ERROR(job->Attach(join));
  return job;
}

WorkerJob::~WorkerJob() {
  if (runner_ != nullptr) {  // before anything waits for what others never reach
    runner_->Disconnect();
  }
}

void WorkerJob::Cancel(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = why;
    if (attachment_ != nullptr) {
      attachment_->Cancel(why);
    }
  }
  runner_->Cancel(why);
}

bool WorkerJob::IsStill(const proto::JoinJobReply& join) const {
  absl::MutexLock lock(&mutex_);
  return cancelled_.ok() && IsSamePart(join, join_);
}

absl::Status WorkerJob::Reattach(const proto::JoinJobReply& join) {
  if (attachment_ != nullptr && attachment_->Follow(join)) {
    return absl::OkStatus();
  }
  std::unique_ptr<Attachment> before;
  {
    absl::MutexLock lock(&mutex_);
    before = std::move(attachment_);
  }
  before.reset();
  return Attach(join);
}

absl::Status WorkerJob::Attach(const proto::JoinJobReply& join) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Attachment> attachment,
                         Attachment::Create(*context_, attached_, join));
  absl::MutexLock lock(&mutex_);
  attachment_ = std::move(attachment);
  if (!cancelled_.ok()) {
    attachment_->Cancel(cancelled_);
  }
  return absl::OkStatus();
}

absl::Status WorkerJob::RunMicrobatches(const proto::StepWork& work,
                                        proto::FinishedReport& report) {
  if (!(work.minibatch_weight() > 0) || !std::isfinite(work.minibatch_weight())) {
    return InvalidArgument("the targets of the step weigh {}", work.minibatch_weight());
  }
  if (work.draw() && context_->job.plan.assignment != plan::Assignment::kDynamic) {
    return Internal(
        "the coordinator wants microbatches to be drawn; plan.assignment is not dynamic");
  }
  if (work.validates() && !work.of_training() && context_->validation == nullptr) {
    return Internal("the coordinator wants a validation; the job has none");
  }
  SHOAL_RETURN_IF_ERROR(attachment_->BeginStep(work));
  const double loss_scale = 1.0 / work.minibatch_weight();
  SHOAL_RETURN_IF_ERROR(
      runner_->Run(work, loss_scale, attachment_->source(), attachment_->sink(), report));
  return attachment_->FinishPushes();
}

void WorkerJob::AddTimes(const std::array<double, kTimeKinds>& before,
                         proto::FinishedReport& report) const {
  const auto spent = [&](TimeKind kind) {
    return time_kinds_.seconds(kind) - before[static_cast<size_t>(kind)];
  };
  report.set_busy_seconds(spent(TimeKind::kForward) + spent(TimeKind::kBackward));
  report.set_get_wait_seconds(spent(TimeKind::kGetWait));
  const std::vector<double>& get_waits = time_kinds_.get_waits();
  report.mutable_get_wait_by_server()->Assign(get_waits.begin(), get_waits.end());
  report.set_push_wait_seconds(spent(TimeKind::kPushWait));
  report.set_layer_wait_seconds(spent(TimeKind::kLayerWait));
  report.set_transfer_wait_seconds(spent(TimeKind::kTransferWait));
  for (const TimeKindClock::Span& span : time_kinds_.spans()) {
    proto::Span& message = *report.add_spans();
    message.set_kind(static_cast<int32_t>(span.kind));
    message.set_microbatch(span.microbatch);
    message.set_unit(span.unit);
    message.set_start_nanoseconds(absl::ToUnixNanos(span.start));
    message.set_nanoseconds(absl::ToInt64Nanoseconds(span.duration));
    if (span.waited_for >= 0) {
      const bool stage = span.kind == TimeKind::kNeighbourWait;
      message.set_waited_for(stage ? context_->group.WorkerOf(span.waited_for) : span.waited_for);
    }
  }
  report.set_dropped_spans(time_kinds_.dropped_spans());
}

proto::FinishedReport WorkerJob::RunStep(const proto::StepWork& work) {
  proto::FinishedReport report;
  report.set_step(work.step());
  report.set_attempt(work.attempt());
  report.set_round(work.round());
  report.set_peak_flops(peak_flops_);
  time_kinds_.AtMicrobatch(-1);
  time_kinds_.AtUnit(-1);
  time_kinds_.Record(work.trace());  // includes the wait that ends here
  time_kinds_.Enter(TimeKind::kData);
  const std::array<double, kTimeKinds> before = time_kinds_.all();
  absl::Status status = RunMicrobatches(work, report);
  if (!status.ok()) {
    runner_->Abandon(status);
  }
  status = attachment_->EndStep(status);
  attachment_->AddConnections(report);
  runner_->EndStep(report);
  time_kinds_.AtMicrobatch(-1);
  time_kinds_.Enter(TimeKind::kStepWait);
  AddTimes(before, report);
  if (!status.ok()) {
    report.set_failed(true);
    report.set_message(
        fmt::format("step {} attempt {}: {}", work.step(), work.attempt(), Message(status)));
    context_->metrics->OnStepFailed();
    LogWarning("{}: {}", context_->options.name, report.message());
  } else {
    LogDebug(
        "step {} attempt {}: {} packs, {:.3f} s busy, {:.3f} s waiting for weights, "
        "{:.3f} s for pushes, {:.3f} s for neighbours, {:.3f} s for copies",
        work.step(), work.attempt(), report.packs_size(), report.busy_seconds(),
        report.get_wait_seconds(), report.push_wait_seconds(),
        time_kinds_.seconds(TimeKind::kNeighbourWait) -
            before[static_cast<size_t>(TimeKind::kNeighbourWait)],
        report.transfer_wait_seconds());
  }
  attachment_->UpdateMetrics(runner_->fallbacks());
  return report;
}

}  // namespace shoal::worker
