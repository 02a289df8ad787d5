// The pipeline of a job, planned before it runs (cluster.pipeline): what `shoal plan` prints and
// draws.
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
  std::vector<plan::StageNeeds> stages;  // of the chosen one
  bool measured = false;                 // the pace, on this machine
};

// The first steps as the coordinator will plan them, without measured speeds: what each worker
// group will run.
absl::StatusOr<std::vector<plan::StepPlan>> PlanFirstSteps(const plan::Job& job,
                                                           const plan::ModelSpec& spec,
                                                           const sim::Minibatches& minibatches,
                                                           int64_t steps);

// What the job leaves open of its pace is measured on this machine and written into it. Whether
// anything was.
absl::StatusOr<bool> SettlePace(plan::Job& job, const plan::ModelSpec& spec);

// For the heaviest of the first steps, as the coordinator will. The job runs its steps as
// schedules; its pace is settled, and so is what its stages may take of their GPUs: what there is,
// as this machine has it.
absl::StatusOr<PipelineReport> ReportPipeline(plan::Job& job, const plan::ModelSpec& spec,
                                              const sim::Minibatches& minibatches);

// The chosen one in a line.
std::string Describe(const PipelineReport& report);
// A line where the job will not do what it seems to ask for; else empty.
std::string WarningOf(const PipelineReport& report);
void PrintPipeline(const PipelineReport& report, Streams& streams);
void PrintJsonPipeline(const PipelineReport& report, Streams& streams);

// The chosen schedule with its transfers, simulated, as an SVG file.
absl::Status DrawPipeline(const PipelineReport& report, const std::string& file);

}  // namespace shoal::cli
