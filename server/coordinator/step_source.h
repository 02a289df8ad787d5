// Where the steps of a job come from: which samples, in which microbatches, on which worker, at
// which learning rate. A function of the step alone (plan/), so that a repeated attempt and a
// resumed job get the same.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "plan/step_plan.h"

namespace shoal::server {

class StepSource {
 public:
  virtual ~StepSource() = default;
  // The first step is 1. Thread-safe; may take tens of milliseconds for a large minibatch.
  virtual absl::StatusOr<plan::StepPlan> Plan(int64_t step, int workers) const = 0;
  virtual double LearningRate(int64_t step) const = 0;
};

}  // namespace shoal::server
