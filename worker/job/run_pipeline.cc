// A step as a stage of a pipeline lives it: all of its microbatches as one schedule.
#include <map>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "worker/job/build_batch.h"
#include "worker/job/report_microbatch.h"
#include "worker/job/worker_job.h"
#include "worker/model/batch/batch_size.h"

namespace shoal::worker {
namespace {

// As many as the phase clock keeps spans.
constexpr int kMostCopies = PhaseClock::kMaxSpans;

// Compute and waits are the phase clock's to tell.
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

}  // namespace

absl::Status WorkerJob::RunPipeline(const proto::StepWork& work, double loss_scale,
                                    proto::FinishedReport& report) {
  std::vector<PackedBatch> batches;
  std::vector<plan::MicrobatchSize> sizes;
  for (const proto::MicrobatchWork& microbatch : work.microbatches()) {
    SHOAL_ASSIGN_OR_RETURN(batches.emplace_back(), BuildBatch(*data_, microbatch));
    sizes.push_back(SizeOfBatch(batches.back()));
  }
  sink_->BeginStep(work.microbatches_size());
  if (batches.empty()) {
    source_->BeginStep({});
    stage_->SkipStep(work);
    return absl::OkStatus();
  }
  SHOAL_RETURN_IF_ERROR(stage_->PlanStep(sizes));
  source_->BeginStep(stage_->Uses());
  SHOAL_ASSIGN_OR_RETURN(const StageReport ran,
                         stage_->RunStep(work, batches, loss_scale, *source_, *sink_));
  for (size_t i = 0; i < batches.size(); ++i) {
    const MicrobatchResult& result = ran.microbatches[i];
    ReportMicrobatch(sizes[i], result, ran.microbatch_seconds[i], report);
    if (stage_->has_head()) {  // counted once in a group
      metrics_->OnMicrobatch(result.tokens, result.targets);
    }
  }
  const std::map<int, proto::DataConnection> connections = stage_->connections();
  for (const auto& [stage, traffic] : ran.traffic) {
    const auto connection = connections.find(stage);
    SHOAL_CHECK(connection != connections.end());
    metrics_->OnStageMessages(connection->second.transport(), traffic.sent_bytes,
                              traffic.received_bytes);
  }
  report.mutable_neighbour_wait_seconds()->Assign(ran.neighbour_seconds.begin(),
                                                  ran.neighbour_seconds.end());
  AddCopies(ran, report);
  for (const Stall stall : {Stall::kTransfer, Stall::kNeighbour}) {
    if (const StallTime& time = ran.Of(stall); time.longest_seconds > 0) {
      LogDebug("step {}: {:.3f} s waiting for {}s, the longest {:.3f} s for {}", work.step(),
               time.seconds, kStallNames[static_cast<size_t>(stall)], time.longest_seconds,
               time.longest);
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
