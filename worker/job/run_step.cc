// A step as a worker lives it.
#include <algorithm>
#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "fmt/ranges.h"
#include "worker/job/build_batch.h"
#include "worker/job/report_microbatch.h"
#include "worker/job/worker_job.h"
#include "worker/model/batch/batch_size.h"
#include "worker/model/runner.h"

namespace shoal::worker {
namespace {

// Of acknowledgements, after the last push: servers may be adding up what all workers pushed at the
// same time.
constexpr absl::Duration kFinishTimeout = absl::Seconds(60);

// A stage that failed closes its links, and its neighbours fail of that. Why it failed is worth
// more to know: the coordinator is told of it first.
constexpr absl::Duration kNeighbourReportsFirst = absl::Milliseconds(300);

}  // namespace

absl::Status WorkerJob::RunOne(const proto::MicrobatchWork& work, double loss_scale,
                               proto::FinishedReport& report) {
  phases_.AtMicrobatch(static_cast<int32_t>(report.microbatches()));
  phases_.AtUnit(-1);
  phases_.Enter(Phase::kData);
  SHOAL_ASSIGN_OR_RETURN(const PackedBatch batch, BuildBatch(*data_, work));
  phases_.Enter(Phase::kForward);
  microbatch_started_ = clock_.Now();
  const double before = phases_.seconds(Phase::kForward) + phases_.seconds(Phase::kBackward);
  SHOAL_ASSIGN_OR_RETURN(const MicrobatchResult result,
                         model_->Run(batch, loss_scale, *source_, *sink_));
  phases_.Enter(Phase::kData);
  ReportMicrobatch(SizeOfBatch(batch), result,
                   phases_.seconds(Phase::kForward) + phases_.seconds(Phase::kBackward) - before,
                   report);
  metrics_->OnMicrobatch(result.tokens, result.targets);
  return absl::OkStatus();
}

// The next microbatch is drawn late enough to leave it to others for as long as possible, and early
// enough not to wait for it.
void WorkerJob::OnUnitDone(int unit) {
  if (!drawing_) {
    return;
  }
  const auto blocks = static_cast<double>(spec_.layers);
  // A backward pass takes two thirds of the time, and ends with unit 1 (and the embedding's,
  // short).
  const double left = std::min(blocks, std::max(0.0, unit - 1.0)) / blocks * 2 / 3;
  const absl::Duration remaining = (clock_.Now() - microbatch_started_) * (left / (1 - left));
  if (unit <= 1 || remaining <= drawer_->lead()) {
    drawer_->Ask(remaining);
  }
}

absl::Status WorkerJob::RunGiven(const proto::StepWork& work, double loss_scale,
                                 proto::FinishedReport& report) {
  for (int i = 0; i < work.microbatches_size(); ++i) {
    const bool last = i + 1 == work.microbatches_size();
    drawing_ = last && work.draw();
    SHOAL_RETURN_IF_ERROR(RunOne(work.microbatches(i), loss_scale, report));
  }
  return absl::OkStatus();
}

absl::Status WorkerJob::RunDrawn(double loss_scale, proto::FinishedReport& report) {
  drawing_ = true;
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(const std::optional<proto::MicrobatchWork> drawn, drawer_->Take());
    if (!drawn.has_value()) {
      drawing_ = false;
      return sink_->PushRest();
    }
    source_->AddUses(use_order_);
    SHOAL_RETURN_IF_ERROR(RunOne(*drawn, loss_scale, report));
  }
}

absl::Status WorkerJob::FinishPushes(proto::FinishedReport& report) {
  phases_.AtUnit(-1);
  SHOAL_RETURN_IF_ERROR(sink_->Flush());
  SHOAL_RETURN_IF_ERROR(
      meetings_->BeforePush());  // the last one: a collective ends for all at once
  phases_.Enter(Phase::kPutWait);
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int64_t> pushes, client_->Finish(kFinishTimeout));
  report.mutable_pushes()->Assign(pushes.begin(), pushes.end());
  return absl::OkStatus();
}

absl::Status WorkerJob::RunMicrobatches(const proto::StepWork& work,
                                        proto::FinishedReport& report) {
  if (work.minibatch_targets() <= 0) {
    return InvalidArgument("the step has {} targets", work.minibatch_targets());
  }
  if (work.draw() && drawer_ == nullptr) {
    return Internal(
        "the coordinator wants microbatches to be drawn; plan.assignment is not dynamic");
  }
  const double loss_scale = 1.0 / static_cast<double>(work.minibatch_targets());
  SHOAL_RETURN_IF_ERROR(client_->BeginStep(work.step(), work.attempt(), work.generation()));
  meetings_->BeginStep();
  if (exchanges()) {
    phases_.Enter(Phase::kLayerWait);
    SHOAL_RETURN_IF_ERROR(
        exchange_->BeginAttempt({work.step(), work.attempt()}, work.generation()));
    phases_.Enter(Phase::kData);
  }
  if (stage_ != nullptr) {
    SHOAL_RETURN_IF_ERROR(RunPipeline(work, loss_scale, report));
    return FinishPushes(report);
  }
  std::vector<int> uses;
  for (int i = 0; i < work.microbatches_size(); ++i) {
    uses.insert(uses.end(), use_order_.begin(), use_order_.end());
  }
  source_->BeginStep(uses);
  sink_->BeginStep(work.draw() ? std::nullopt : std::optional(work.microbatches_size()));
  if (work.draw()) {
    drawer_->BeginStep(work.step(), work.attempt());
  }
  SHOAL_RETURN_IF_ERROR(RunGiven(work, loss_scale, report));
  if (work.draw()) {
    SHOAL_RETURN_IF_ERROR(RunDrawn(loss_scale, report));
  }
  return FinishPushes(report);
}

void WorkerJob::FillReport(const std::array<double, kPhases>& before,
                           proto::FinishedReport& report) const {
  const auto spent = [&](Phase phase) {
    return phases_.seconds(phase) - before[static_cast<size_t>(phase)];
  };
  report.set_busy_seconds(spent(Phase::kForward) + spent(Phase::kBackward));
  report.set_get_wait_seconds(spent(Phase::kGetWait));
  report.set_push_wait_seconds(spent(Phase::kPutWait));
  report.set_layer_wait_seconds(spent(Phase::kLayerWait));
  report.set_transfer_wait_seconds(spent(Phase::kTransferWait));
  for (const PhaseClock::Span& span : phases_.spans()) {
    proto::Span& message = *report.add_spans();
    message.set_phase(static_cast<int32_t>(span.phase));
    message.set_microbatch(span.microbatch);
    message.set_unit(span.unit);
    message.set_start_nanoseconds(absl::ToUnixNanos(span.start));
    message.set_nanoseconds(absl::ToInt64Nanoseconds(span.duration));
  }
  report.set_dropped_spans(phases_.dropped_spans());
  AddConnections(report);
}

void WorkerJob::AddConnections(proto::FinishedReport& report) const {
  const std::vector<client::ClientStatistics::Connection> connections =
      client_->statistics().connections;
  for (size_t server = 0; server < connections.size(); ++server) {
    proto::DataConnection& message = *report.add_connections();
    message.set_peer(fmt::format("server-{}", server));
    message.set_transport(connections[server].transport);
    if (connections[server].transport != job_.service.transports.front()) {
      std::vector<std::string> reasons = unavailable_;  // transports that were not offered
      if (!connections[server].reason.empty()) {
        reasons.push_back(connections[server].reason);
      }
      message.set_reason(fmt::format("{}", fmt::join(reasons, "; ")));
    }
  }
  if (stage_ != nullptr) {
    for (const auto& [stage, connection] : stage_->connections()) {
      *report.add_connections() = connection;
    }
  }
}

proto::FinishedReport WorkerJob::RunStep(const proto::StepWork& work) {
  proto::FinishedReport report;
  report.set_step(work.step());
  report.set_attempt(work.attempt());
  phases_.AtMicrobatch(-1);
  phases_.AtUnit(-1);
  phases_.Record(work.trace());  // with the wait that ends here
  phases_.Enter(Phase::kData);
  const std::array<double, kPhases> before = phases_.all();
  absl::Status status = RunMicrobatches(work, report);
  if (!status.ok() && stage_ != nullptr) {
    stage_->Abandon(status);
  }
  if (exchanges()) {
    exchange_->EndAttempt(status);  // first: the device may be waiting for other workers
  }
  if (!status.ok() && compute_ != nullptr) {
    compute_->Synchronize().IgnoreError();  // the next attempt starts anew
  }
  for (const absl::Status& ended : {source_->EndStep(), sink_->EndStep()}) {
    status = status.ok() ? ended : status;
  }
  drawing_ = false;
  if (absl::IsUnavailable(status) && stage_ != nullptr) {
    absl::SleepFor(kNeighbourReportsFirst);
  }
  phases_.AtMicrobatch(-1);
  phases_.Enter(Phase::kOptimizerWait);
  FillReport(before, report);
  if (!status.ok()) {
    report.set_failed(true);
    report.set_message(
        fmt::format("step {} attempt {}: {}", work.step(), work.attempt(), Message(status)));
    metrics_->OnStepFailed();
    LogWarning("{}: {}", options_.name, report.message());
  } else {
    LogDebug(
        "step {} attempt {}: {} microbatches, {:.3f} s busy, {:.3f} s waiting for weights, "
        "{:.3f} s for pushes, {:.3f} s for neighbours, {:.3f} s for copies",
        work.step(), work.attempt(), report.microbatches(), report.busy_seconds(),
        report.get_wait_seconds(), report.push_wait_seconds(),
        phases_.seconds(Phase::kNeighbourWait) - before[static_cast<size_t>(Phase::kNeighbourWait)],
        report.transfer_wait_seconds());
  }
  client::ClientStatistics statistics = client_->statistics();
  if (stage_ != nullptr) {
    statistics.fallbacks += stage_->fallbacks();
    if (stage_->passed_host() && !std::exchange(told_passed_host_, true)) {
      metrics_->OnNoExchange();
    }
  }
  metrics_->Update(phases_, statistics);
  if (device_ != nullptr) {
    metrics_->UpdateDevice(statistics, ways_.get, ways_.push);
  }
  if (exchanges()) {
    metrics_->UpdateExchange(exchange_->statistics());
  }
  return report;
}

}  // namespace shoal::worker
