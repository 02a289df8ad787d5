// Runs a step's microbatches on a worker's model: one after the other over all units (plain), or as
// a pipeline stage, all of them as one schedule.
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

// Call from the compute thread, except Cancel.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // By unit, how often a microbatch adds to its gradient; 0: not this worker's unit.
  virtual std::vector<int> Contributions() const = 0;
  // The model's device, if the host cannot access its memory; otherwise null.
  virtual Device* device() const { return nullptr; }
  virtual Stream* compute() const { return nullptr; }

  // Begins the step of source and sink, runs its microbatches and adds them to the report.
  virtual absl::Status Run(const proto::StepWork& work, double loss_scale, StepWeights& source,
                           StepGradients& sink, proto::FinishedReport& report) = 0;
  // Call when a microbatch is done with that unit.
  virtual void OnUnitDone(int /*unit*/) {}
  // Call when the current step has failed, in Run or after.
  virtual void Abandon(const absl::Status& /*why*/) {}
  // Ends the step; adds to the report what is known by then.
  virtual void EndStep(proto::FinishedReport& /*report*/) {}

  // Ends the current step, and every later one, after the pack at hand, where that helps nobody but
  // this worker; else steps run to their end. Any thread.
  virtual void Drain() {}
  // Makes the current step fail at once, and every later one. Any thread.
  virtual void Cancel(const absl::Status& /*why*/) {}
  // Call when no step follows: releases other workers.
  virtual void Disconnect() {}
  // Connections to other workers over a transport other than the job's first.
  virtual int64_t fallbacks() const { return 0; }
};

// The context must outlive the runner.
absl::StatusOr<std::unique_ptr<StepRunner>> MakePlainRunner(const JobContext& context,
                                                            OpenedDevice opened);
// `check`: whether the current attempt continues; called during steps.
absl::StatusOr<std::unique_ptr<StepRunner>> MakePipelineRunner(const JobContext& context,
                                                               OpenedDevice opened,
                                                               const JobTransports& transports,
                                                               std::function<absl::Status()> check);

// Builds a sequence from each sample that the coordinator names, in the plan's order; of pairs,
// two.
absl::StatusOr<PackedBatch> BuildBatch(const JobContext& context, const proto::StepWork& work,
                                       const proto::MicrobatchWork& pack);
// Adds a finished pack to the report, without the time of an empty one.
void ReportPack(int64_t number, const plan::MicrobatchSize& size, const MicrobatchResult& result,
                double seconds, proto::FinishedReport& report);

}  // namespace shoal::worker
