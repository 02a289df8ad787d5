// The choices for a job's pipeline, as the planner sends them to those who run it
// (proto/job.proto). Schedules of steps follow from them (chosen_schedule.h).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/plan/pipeline/chosen_schedule.h"
#include "proto/pipeline.pb.h"

namespace shoal::plan {

struct ChosenPipeline {
  PipelineChoice choice;
  std::vector<MicrobatchSize> heaviest;  // what it was planned for: HeaviestStep

  // Units by chunk of that stage.
  std::vector<UnitRange> ChunksOf(int stage) const;
};

proto::PipelinePlan ToMessage(const ChosenPipeline& pipeline);
// InvalidArgument for what is not one of this model and job.
absl::StatusOr<ChosenPipeline> FromMessage(const proto::PipelinePlan& message,
                                           const ModelSpec& spec, const Job& job);

}  // namespace shoal::plan
