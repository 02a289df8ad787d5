#include "server/coordinator/step/step_measurements.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shoal::server {
namespace {

// Weight of the latest step in the average of time beyond the plan.
constexpr double kNewestShare = 0.3;

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

StepMeasurements::StepMeasurements(const plan::Job& job, int groups)
    : assignment_(plan::Resolved(job.plan.assignment, job.train.synchronization)),
      synchronization_(job.train.synchronization),
      plans_by_speed_(assignment_ == plan::Assignment::kSpeedWeighted ||
                      assignment_ == plan::Assignment::kDynamic),
      plans_by_fit_(job.plan.cost == plan::CostSource::kFitted &&
                    job.service.accumulate != plan::Accumulate::kExact),
      groups_(groups),
      stages_(static_cast<double>(job.cluster.pipeline.stages)),
      fit_(groups) {}

void StepMeasurements::Renumber(const std::vector<int>& before) {
  groups_ = static_cast<int>(before.size());
  fit_.Renumber(before);
  Refit();
}

void StepMeasurements::Add(int group, const proto::FinishedReport& report) {
  for (const proto::MicrobatchTime& time : report.times()) {
    fit_.Add({.worker = group,
              .tokens = time.tokens(),
              .squared_tokens = time.squared_tokens(),
              .seconds = time.seconds()});
  }
}

std::vector<double> StepMeasurements::KnownSpeeds() const {
  return fitted_.measured > 0 ? fitted_.speeds : std::vector<double>();
}

bool StepMeasurements::ShapePlans() const { return plans_by_speed_ || plans_by_fit_; }

PlanInputs StepMeasurements::Inputs() const {
  PlanInputs inputs{.groups = groups_};
  if (plans_by_speed_) {
    inputs.speeds = KnownSpeeds();
  }
  if (plans_by_fit_ && fitted_.enough) {
    inputs.cost = fitted_.cost;
  }
  return inputs;
}

// Fitted costs are in seconds. Before they can price any plan (for instance if lengths were too
// similar), compares parts by the plan's own costs, scaled by the last step.
StepMeasurements::Prediction StepMeasurements::Predict(const plan::StepPlan& plan) const {
  const std::vector<double> speeds = KnownSpeeds();
  if (fitted_.enough) {
    return {plan::Predict(plan, synchronization_, speeds, fitted_.cost), 1};
  }
  return {plan::Predict(plan, synchronization_, speeds), seconds_per_cost_};
}

void StepMeasurements::AddStep(const plan::StepPlan& plan, const RanStep& ran) {
  ++steps_;
  if (ran.pace_seconds > 0) {
    stage_share_ = ran.busy_seconds / (stages_ * ran.pace_seconds);
  }
  if (!fitted_.enough) {
    const double cost = Sum(Predict(plan).step.busy);
    seconds_per_cost_ = cost > 0 ? ran.pace_seconds / cost : 0;
  }
  const Prediction predicted = Predict(plan);
  // The first step of a run also connects and allocates; starts with the second.
  if (steps_ == 1 || predicted.seconds_per_unit == 0) {
    return;
  }
  const double beyond =
      std::max(0.0, ran.seconds - predicted.step.step_time * predicted.seconds_per_unit);
  beyond_plan_seconds_ =
      steps_ == 2 ? beyond : beyond_plan_seconds_ + kNewestShare * (beyond - beyond_plan_seconds_);
}

double StepMeasurements::PredictIdleShare(const plan::StepPlan& plan) const {
  const Prediction predicted = Predict(plan);
  if (predicted.seconds_per_unit == 0) {
    return predicted.step.idle_share;
  }
  const double step_seconds =
      predicted.step.step_time * predicted.seconds_per_unit + beyond_plan_seconds_;
  const double busy = Sum(predicted.step.busy) * predicted.seconds_per_unit * stage_share_;
  const double capacity = step_seconds * static_cast<double>(predicted.step.busy.size());
  return capacity > 0 ? 1 - busy / capacity : 0;
}

plan::DrawQueue StepMeasurements::MakeDrawQueue(const plan::StepPlan& plan) const {
  plan::StepPlan priced = plan;
  double cost_per_second = 0;  // shown to workers' draws
  if (fitted_.enough) {
    cost_per_second = 1;
    for (auto& microbatches : priced.workers) {
      for (plan::Microbatch& microbatch : microbatches) {
        microbatch.cost = fitted_.cost.Microbatch(microbatch.tokens, microbatch.squared_tokens);
      }
    }
  }
  return {std::move(priced), KnownSpeeds(), cost_per_second};
}

}  // namespace shoal::server
