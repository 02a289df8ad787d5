// Plans a job's pipeline (cluster.pipeline) before it runs, for `shoal plan` to print and draw.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/run/command.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/plan/pipeline/job_pipeline.h"
#include "core/plan/step/step_plan.h"
#include "core/sim/comparison.h"

namespace shoal::cli {

struct PipelineReport {
  plan::PipelineRequest request;
  plan::PipelinePlan plan;
  std::vector<plan::StageNeeds> stages;  // of the chosen candidate
  bool measured = false;                 // the pace was measured on this machine
};

// Plans each worker group's microbatches for the first steps as the coordinator will, without
// measured speeds.
absl::StatusOr<std::vector<plan::StepPlan>> PlanFirstSteps(const plan::Job& job,
                                                           const plan::ModelSpec& spec,
                                                           const sim::Minibatches& minibatches,
                                                           int64_t steps);

// Settles what a local job leaves open of train.recompute and train.offload, by the memory of this
// machine, and returns a line if that changes anything (core/plan/pipeline/least_recompute.h).
absl::StatusOr<std::string> SettleRecompute(plan::Job& job, const plan::ModelSpec& spec,
                                            int64_t available_bytes);

// Plans for the heaviest of the first steps, as the coordinator will. The job must run its steps as
// schedules. Writes into it what it leaves open, as measured on this machine: its pace and the GPU
// memory of its stages.
absl::StatusOr<PipelineReport> ReportPipeline(plan::Job& job, const plan::ModelSpec& spec,
                                              const sim::Minibatches& minibatches);

// Returns the key to name where a job's schedule cannot be planned.
std::string PipelineKey(const plan::Job& job);

// Describes the chosen candidate in a line.
std::string Describe(const PipelineReport& report);
// Returns a line if the job will not do what it seems to ask for, else nothing.
std::string WarningOf(const PipelineReport& report);
void PrintPipeline(const PipelineReport& report, Streams& streams);
void PrintJsonPipeline(const PipelineReport& report, Streams& streams);

// Simulates the chosen schedule with its transfers and draws it as SVG.
absl::Status DrawPipeline(const PipelineReport& report, const std::string& file);

}  // namespace shoal::cli
