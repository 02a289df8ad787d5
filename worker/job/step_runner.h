// How a worker runs the microbatches of a step on its model: one after the other over all units
// (plain), or as a stage of a pipeline, all of them as one schedule.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/token_file.h"
#include "core/plan/pipeline/pace_costs.h"
#include "proto/coordinator.pb.h"
#include "worker/exchange/step_access.h"
#include "worker/job/attachment.h"
#include "worker/job/job_context.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

// Of the compute thread, but for Cancel.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // By unit, how often a microbatch adds to its gradient; 0: it is not this worker's.
  virtual std::vector<int> Contributions() const = 0;
  // Where the model computes, if the host cannot reach its memory; else null.
  virtual Device* device() const { return nullptr; }
  virtual Stream* compute() const { return nullptr; }

  // Begins the step of source and sink, runs its microbatches and adds them to the report.
  virtual absl::Status Run(const proto::StepWork& work, double loss_scale, StepWeights& source,
                           StepGradients& sink, proto::FinishedReport& report) = 0;
  // A microbatch is done with that unit.
  virtual void OnUnitDone(int /*unit*/) {}
  // The step at hand failed, in Run or after.
  virtual void Abandon(const absl::Status& /*why*/) {}
  // It is over; adds to the report what is known of it then.
  virtual void EndStep(const absl::Status& /*how*/, proto::FinishedReport& /*report*/) {}

  // The step at hand fails at once, as does every later one. Any thread.
  virtual void Cancel(const absl::Status& /*why*/) {}
  // There is no step any more: lets go of other workers.
  virtual void Disconnect() {}
  // Connections to other workers over another transport than the job's first.
  virtual int64_t fallbacks() const { return 0; }
};

// The context must outlive the runner.
absl::StatusOr<std::unique_ptr<StepRunner>> MakePlainRunner(const JobContext& context,
                                                            OpenedDevice opened);
// `check`: whether the attempt at hand goes on, called in steps.
absl::StatusOr<std::unique_ptr<StepRunner>> MakePipelineRunner(const JobContext& context,
                                                               OpenedDevice opened,
                                                               const JobTransports& transports,
                                                               std::function<absl::Status()> check);

// The samples that the coordinator names, in the plan's order, one sequence each.
absl::StatusOr<PackedBatch> BuildBatch(const formats::TokenFile& file,
                                       const proto::MicrobatchWork& work);
// Adds a microbatch that was computed to the report. An empty one took no time worth telling.
void ReportMicrobatch(const plan::MicrobatchSize& size, const MicrobatchResult& result,
                      double seconds, proto::FinishedReport& report);

}  // namespace shoal::worker
