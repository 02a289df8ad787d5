// The candidates that a planner examines, before simulation.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/pipeline/chosen_schedule.h"
#include "core/plan/pipeline/planner.h"

namespace shoal::plan {

struct Variant {
  PipelineChoice choice;  // nothing offloaded
  // Lower bound of a step's time: the compute of the stage that has most of it.
  double least_seconds = 0;
};

// Returns the costs by unit, summed by stage.
std::vector<double> StageSums(const PipelineChoice& choice, std::span<const double> unit_costs);

// In order of preference at equal times: little recomputed before much, few chunks before many,
// simple before complex. InvalidArgument if there are none.
absl::StatusOr<std::vector<Variant>> VariantsOf(const PipelineRequest& request);

}  // namespace shoal::plan
