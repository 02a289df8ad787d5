// Steps from a token file: the walk over the dataset, packed and balanced as the job says.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/data/token_file.h"
#include "core/job/job.h"
#include "core/plan/step/cost_model.h"
#include "server/coordinator/job/step_planner.h"

namespace shoal::server {

class DatasetSteps final : public StepPlanner {
 public:
  // `cost` is what balances unless a plan's inputs say otherwise. InvalidArgument if the file has
  // no sample.
  static absl::StatusOr<std::unique_ptr<DatasetSteps>> Create(
      const plan::Job& job, plan::CostModel cost, std::unique_ptr<formats::TokenFile> file);

  absl::StatusOr<plan::StepPlan> Plan(int64_t step, const PlanInputs& inputs) const override;
  double LearningRate(int64_t step) const override;

 private:
  DatasetSteps(const plan::Job& job, plan::CostModel cost,
               std::unique_ptr<formats::TokenFile> file);

  const plan::DataOptions data_;
  const plan::AssignmentOptions choices_;
  const plan::TrainOptions train_;
  const plan::CostModel cost_;
  const std::unique_ptr<formats::TokenFile> file_;
};

}  // namespace shoal::server
