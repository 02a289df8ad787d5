// Predicts what a plan will take: for `shoal plan`, the simulator and the coordinator's metrics.
// Pure. Assumes that computation hides communication.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/job/assignment.h"
#include "core/plan/step/step_plan.h"

namespace shoal::plan {

// In the unit of the plan's costs: seconds if the cost model is in seconds and speed 1 is its
// device.
struct StepPrediction {
  std::vector<double> busy;  // by worker
  double step_time = 0;
  double idle_share = 0;  // 1 - sum of busy / (workers * step_time)
};

// With step synchronisation a step takes as long as the worker with most to do. With layer
// synchronisation all wait for the slowest of the m-th microbatches, for every m. `speeds` by
// worker, empty: all 1. `cost` prices the microbatches again, instead of the plan's prices.
StepPrediction Predict(const StepPlan& plan, Synchronization synchronization,
                       std::span<const double> speeds = {},
                       const std::optional<CostModel>& cost = std::nullopt);

}  // namespace shoal::plan
