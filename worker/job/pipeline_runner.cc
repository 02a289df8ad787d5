// Runs steps of a pipeline stage: all of its microbatches as one schedule.
#include <map>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/schedule/stage_units.h"
#include "worker/job/step_runner.h"
#include "worker/model/batch/batch_size.h"

namespace shoal::worker {
namespace {

// As many as TimeKindClock keeps spans.
constexpr int kMostCopies = TimeKindClock::kMaxSpans;

// TimeKindClock has the spans of computing and waiting.
void AddCopies(const StageReport& ran, proto::FinishedReport& report) {
  for (const StageSpan& span : ran.spans) {
    if (report.copies_size() == kMostCopies) {
      return;
    }
    if (span.kind == StageSpan::Kind::kOffload || span.kind == StageSpan::Kind::kReload) {
      proto::CopySpan& copy = *report.add_copies();
      copy.set_reload(span.kind == StageSpan::Kind::kReload);
      copy.set_chunk(span.action.chunk);
      copy.set_microbatch(span.action.microbatch);
      copy.set_start_nanoseconds(absl::ToUnixNanos(span.begin));
      copy.set_nanoseconds(absl::ToInt64Nanoseconds(span.length));
    }
  }
}

class PipelineRunner final : public StepRunner {
 public:
  PipelineRunner(const JobContext& context, std::unique_ptr<StageJob> stage, bool copies)
      : context_(context), stage_(std::move(stage)), copies_(copies) {}

  std::vector<int> Contributions() const override {
    return plan::StageContributions(context_.spec, stage_->chunks());
  }
  Device* device() const override { return copies_ ? stage_->device() : nullptr; }
  Stream* compute() const override { return copies_ ? stage_->compute() : nullptr; }

  absl::Status Run(const proto::StepWork& work, double loss_scale, StepWeights& source,
                   StepGradients& sink, proto::FinishedReport& report) override;
  void Abandon(const absl::Status& why) override { stage_->Abandon(why); }
  void EndStep(proto::FinishedReport& report) override;

  void Cancel(const absl::Status& why) override { stage_->Cancel(why); }
  void Disconnect() override { stage_->Disconnect(); }
  int64_t fallbacks() const override { return stage_->fallbacks(); }

 private:
  const JobContext& context_;
  const std::unique_ptr<StageJob> stage_;
  const bool copies_;              // the host cannot reach the device's memory
  bool told_passed_host_ = false;  // metrics counted it
  int64_t most_activations_ = 0;   // on device and host, of a step so far
};

absl::Status PipelineRunner::Run(const proto::StepWork& work, double loss_scale,
                                 StepWeights& source, StepGradients& sink,
                                 proto::FinishedReport& report) {
  const bool validates = work.validates();
  std::vector<PackedBatch> batches;
  std::vector<plan::MicrobatchSize> sizes;
  for (const proto::MicrobatchWork& microbatch : work.microbatches()) {
    SHOAL_ASSIGN_OR_RETURN(batches.emplace_back(), BuildBatch(context_, work, microbatch));
    sizes.push_back(SizeOfBatch(batches.back()));
  }
  sink.BeginStep({.microbatches = validates ? 0 : work.microbatches_size(),
                  .packs = work.packs(),
                  .slot = work.slot()});
  if (batches.empty()) {
    source.BeginStep({});
    stage_->SkipStep(work);
    return absl::OkStatus();
  }
  SHOAL_RETURN_IF_ERROR(stage_->PlanStep(sizes, validates));
  source.BeginStep(stage_->Uses());
  const absl::StatusOr<StageReport> run = stage_->RunStep(work, batches, loss_scale, source, sink);
  report.set_by_neighbour(stage_->lost_neighbour());
  SHOAL_RETURN_IF_ERROR(run.status());
  const StageReport& ran = *run;
  for (size_t i = 0; i < batches.size(); ++i) {
    const MicrobatchResult& result = ran.microbatches[i];
    ReportPack(work.microbatches(static_cast<int>(i)).number(),
               validates ? plan::MicrobatchSize() : sizes[i], result, ran.microbatch_seconds[i],
               report);
    if (stage_->has_head() && !validates) {  // count once per group
      context_.metrics->OnMicrobatch(result.tokens, result.targets);
    }
  }
  const std::map<int, proto::DataConnection> connections = stage_->connections();
  for (const auto& [stage, traffic] : ran.traffic) {
    const auto connection = connections.find(stage);
    SHOAL_CHECK(connection != connections.end());
    context_.metrics->OnStageMessages(connection->second.transport(), traffic.sent_bytes,
                                      traffic.received_bytes);
  }
  report.mutable_neighbour_wait_seconds()->Assign(ran.neighbour_seconds.begin(),
                                                  ran.neighbour_seconds.end());
  AddCopies(ran, report);
  if (const int64_t taken = ran.peak_device_bytes + ran.peak_host_bytes;
      taken > most_activations_) {
    most_activations_ = taken;
    LogInfo("{}: activations took {} of the device and {} of the host at most in step {}",
            context_.options.name, FormatBytes(ran.peak_device_bytes),
            FormatBytes(ran.peak_host_bytes), work.step());
  }
  for (const Stall stall : {Stall::kTransfer, Stall::kNeighbour}) {
    if (const StallTime& time = ran.Of(stall); time.longest_seconds > 0) {
      LogDebug("step {}: {:.3f} s waiting for {}s, the longest {:.3f} s for {}", work.step(),
               time.seconds, kStallNames[static_cast<size_t>(stall)], time.longest_seconds,
               time.longest);
    }
  }
  return absl::OkStatus();
}

void PipelineRunner::EndStep(proto::FinishedReport& report) {
  for (const auto& [stage, connection] : stage_->connections()) {
    *report.add_connections() = connection;
  }
  if (stage_->passed_host() && !std::exchange(told_passed_host_, true)) {
    context_.metrics->OnNoExchange();
  }
}

void LogMessagesPath(const JobContext& context, const StageJob& stage, bool copies) {
  const std::string& name = context.options.name;
  if (!stage.library().empty()) {
    LogInfo("{}: messages between stages go from GPU to GPU by {}", name, stage.library());
  } else if (stage.copies_between_gpus()) {
    LogInfo(
        "{}: messages between stages are copied from GPU to GPU where both open the other's: {}",
        name, stage.why_not());
  } else if (copies && context.group.stages() > 1) {
    LogWarning("{}: messages between stages go through memory of the host, over transports: {}",
               name, stage.why_not());
    context.metrics->OnNoExchange();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepRunner>> MakePipelineRunner(
    const JobContext& context, OpenedDevice opened, const JobTransports& transports,
    std::function<absl::Status()> check) {
  const bool copies = opened.compute_device.device->asynchronous();
  StageJob::Options options{.group = context.group,
                            .pipeline = *context.pipeline,
                            .transports = transports.all(),
                            .unavailable = transports.unavailable,
                            .service = context.options.stage_service,
                            .may_exchange = context.stages_may_exchange,
                            .open_collectives = opened.open_collectives,
                            .check = std::move(check),
                            .cancellation = context.options.cancellation,
                            .time_kinds = context.time_kinds,
                            .clock = context.clock};
  if (context.group.stages() > 1) {
    options.client = context.options.make_stage_client(context.group.peers());
  }
  SHOAL_ASSIGN_OR_RETURN(
      auto stage, StageJob::Create(context.spec, context.job, std::move(opened.compute_device),
                                   std::move(options)));
  LogMessagesPath(context, *stage, copies);
  return std::make_unique<PipelineRunner>(context, std::move(stage), copies);
}

}  // namespace shoal::worker
