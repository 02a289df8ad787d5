#include "server/coordinator/job/dataset_steps.h"

#include "core/base/status.h"
#include "core/plan/step/step_plan.h"

namespace shoal::server {

absl::StatusOr<std::unique_ptr<DatasetSteps>> DatasetSteps::Create(
    const plan::Job& job, plan::CostModel cost, std::unique_ptr<formats::TokenFile> file) {
  if (file->samples() == 0) {
    return InvalidArgument("the dataset has no sample");
  }
  return std::unique_ptr<DatasetSteps>(new DatasetSteps(job, std::move(cost), std::move(file)));
}

DatasetSteps::DatasetSteps(const plan::Job& job, plan::CostModel cost,
                           std::unique_ptr<formats::TokenFile> file)
    : data_(job.data),
      choices_(job.plan),
      train_(job.train),
      cost_(std::move(cost)),
      file_(std::move(file)) {}

absl::StatusOr<plan::StepPlan> DatasetSteps::Plan(int64_t step, const PlanInputs& inputs) const {
  const std::vector<int64_t> ids = plan::MinibatchSamples(
      step, train_.minibatch_samples, file_->samples(), data_.seed, data_.shuffle);
  std::vector<plan::SampleLength> lengths;
  lengths.reserve(ids.size());
  for (const int64_t id : ids) {
    lengths.push_back({.sample = id, .tokens = file_->tokens(id), .targets = file_->targets(id)});
  }
  return plan::PlanStep(lengths,
                        {.workers = inputs.groups,
                         .microbatch_tokens = data_.microbatch_tokens,
                         .assignment = plan::Resolved(choices_.assignment, train_.synchronization),
                         .speeds = inputs.speeds,
                         .equal_counts = train_.synchronization == plan::Synchronization::kLayer},
                        inputs.cost.value_or(cost_));
}

double DatasetSteps::LearningRate(int64_t step) const { return plan::LearningRateAt(train_, step); }

}  // namespace shoal::server
