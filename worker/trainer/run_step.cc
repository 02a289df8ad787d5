// A step as a worker lives it.
#include "common/logging.h"
#include "common/status.h"
#include "worker/model/batch.h"
#include "worker/model/runner.h"
#include "worker/trainer/worker_job.h"

namespace shoal::worker {
namespace {

// Of acknowledgements, after the last push: servers may be adding up what all workers pushed at the
// same time.
constexpr absl::Duration kFinishTimeout = absl::Seconds(60);

// The samples in the plan's order, one sequence each.
absl::StatusOr<PackedBatch> BuildBatch(const formats::TokenFile& file,
                                       const proto::MicrobatchWork& work) {
  PackedBatch batch;
  for (const int64_t sample : work.samples()) {
    SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample views, file.Sample(sample));
    batch.Append(views.tokens, views.labels);
  }
  return batch;
}

}  // namespace

absl::Status WorkerJob::RunOne(const proto::MicrobatchWork& work, double loss_scale,
                               proto::FinishedReport& report) {
  phases_.Enter(Phase::kData);
  SHOAL_ASSIGN_OR_RETURN(const PackedBatch batch, BuildBatch(*data_, work));
  phases_.Enter(Phase::kForward);
  SHOAL_ASSIGN_OR_RETURN(const MicrobatchResult result,
                         RunMicrobatch(*model_, batch, loss_scale, *source_, *sink_));
  report.set_loss_sum(report.loss_sum() + result.loss_sum);
  report.set_tokens(report.tokens() + result.tokens);
  report.set_target_tokens(report.target_tokens() + result.targets);
  report.set_microbatches(report.microbatches() + 1);
  metrics_->OnMicrobatch(result.tokens, result.targets);
  return absl::OkStatus();
}

absl::Status WorkerJob::RunMicrobatches(const proto::StepWork& work,
                                        proto::FinishedReport& report) {
  if (work.microbatches_size() > 0 && work.minibatch_targets() <= 0) {
    return InvalidArgument("the step has {} targets", work.minibatch_targets());
  }
  SHOAL_RETURN_IF_ERROR(client_->BeginStep(work.step(), work.attempt(), work.generation()));
  source_->BeginStep(work.microbatches_size());
  sink_->BeginStep();
  const double loss_scale = 1.0 / static_cast<double>(work.minibatch_targets());
  for (int i = 0; i < work.microbatches_size(); ++i) {
    sink_->BeginMicrobatch(/*last=*/i + 1 == work.microbatches_size());
    SHOAL_RETURN_IF_ERROR(RunOne(work.microbatches(i), loss_scale, report));
  }
  phases_.Enter(Phase::kPutWait);
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int64_t> pushes, client_->Finish(kFinishTimeout));
  report.mutable_pushes()->Assign(pushes.begin(), pushes.end());
  return absl::OkStatus();
}

proto::FinishedReport WorkerJob::RunStep(const proto::StepWork& work) {
  proto::FinishedReport report;
  report.set_step(work.step());
  report.set_attempt(work.attempt());
  phases_.Enter(Phase::kData);
  const std::array<double, kPhases> before = phases_.all();
  const absl::Status status = RunMicrobatches(work, report);
  phases_.Enter(Phase::kOptimizerWait);
  const auto spent = [&](Phase phase) {
    return phases_.seconds(phase) - before[static_cast<size_t>(phase)];
  };
  report.set_busy_seconds(spent(Phase::kForward) + spent(Phase::kBackward));
  report.set_get_wait_seconds(spent(Phase::kGetWait));
  report.set_push_wait_seconds(spent(Phase::kPutWait));
  if (!status.ok()) {
    report.set_failed(true);
    report.set_message(
        fmt::format("step {} attempt {}: {}", work.step(), work.attempt(), Message(status)));
    metrics_->OnStepFailed();
    LogWarning("{}: {}", options_.name, report.message());
  } else {
    LogDebug(
        "step {} attempt {}: {} microbatches, {:.3f} s busy, {:.3f} s waiting for weights, "
        "{:.3f} s for pushes",
        work.step(), work.attempt(), report.microbatches(), report.busy_seconds(),
        report.get_wait_seconds(), report.push_wait_seconds());
  }
  metrics_->Update(phases_, client_->statistics());
  return report;
}

}  // namespace shoal::worker
