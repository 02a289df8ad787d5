// The candidates that a planner looks at, not yet simulated.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/pipeline/chosen_schedule.h"
#include "core/plan/pipeline/planner.h"

namespace shoal::plan {

struct Variant {
  PipelineChoice choice;  // nothing offloaded
  // No step takes less: the compute of the stage that has most of it.
  double least_seconds = 0;
};

// Costs by unit, added up by stage.
std::vector<double> StageSums(const PipelineChoice& choice, std::span<const double> unit_costs);

// Those that go before win where times are the same: little recomputed before much, few chunks
// before many, what is simple before what is not. InvalidArgument where there are none.
absl::StatusOr<std::vector<Variant>> VariantsOf(const PipelineRequest& request);

}  // namespace shoal::plan
