// Plans a job's steps: which samples, in which microbatches, on which worker, at which learning
// rate. A step's samples depend only on the step (plan/), so a repeated attempt and a resumed job
// train on the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/step/cost_model.h"
#include "core/plan/step/step_plan.h"

namespace shoal::server {

// Inputs of a step's plan, as far as known when planning.
struct PlanInputs {
  int groups = 1;                       // of workers
  std::vector<double> speeds;           // by group, measured; empty: unknown
  std::optional<plan::CostModel> cost;  // fitted, instead of the job's own
};

class StepPlanner {
 public:
  virtual ~StepPlanner() = default;
  // The first step is 1. Thread-safe; may take tens of milliseconds for a large minibatch.
  virtual absl::StatusOr<plan::StepPlan> Plan(int64_t step, const PlanInputs& inputs) const = 0;
  // Of the samples that are not trained on: the same packs each time, whoever is to run them.
  virtual absl::StatusOr<plan::StepPlan> PlanValidation(const PlanInputs& inputs) const = 0;
  // Forward of so many samples one after the other, of those that are trained on or of the others.
  virtual absl::StatusOr<plan::StepPlan> PlanForward(bool of_validation, int64_t first,
                                                     int64_t count,
                                                     const PlanInputs& inputs) const = 0;
  virtual double LearningRate(int64_t step) const = 0;
};

}  // namespace shoal::server
