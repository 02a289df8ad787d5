#include "server/coordinator/step_measurements.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/prediction.h"

namespace shoal::server {
namespace {

// Of the newest step in what steps take beyond their plans.
constexpr double kNewestShare = 0.3;

}  // namespace

StepMeasurements::StepMeasurements(const plan::Job& job, int workers)
    : assignment_(plan::Resolved(job.plan.assignment, job.train.synchronization)),
      cost_source_(job.plan.cost),
      synchronization_(job.train.synchronization),
      plans_by_speed_(assignment_ == plan::Assignment::kSpeedWeighted ||
                      (assignment_ == plan::Assignment::kDynamic &&
                       job.service.accumulate != plan::Accumulate::kExact)),
      workers_(workers),
      fit_(workers) {}

void StepMeasurements::Add(int worker, const proto::FinishedReport& report) {
  for (const proto::MicrobatchTime& time : report.times()) {
    fit_.Add({.worker = worker,
              .tokens = time.tokens(),
              .squared_tokens = time.squared_tokens(),
              .seconds = time.seconds()});
  }
}

std::vector<double> StepMeasurements::KnownSpeeds() const {
  return fitted_.measured > 0 ? fitted_.speeds : std::vector<double>();
}

bool StepMeasurements::ShapePlans() const {
  return plans_by_speed_ || cost_source_ == plan::CostSource::kFitted;
}

PlanInputs StepMeasurements::Inputs() const {
  PlanInputs inputs{.workers = workers_};
  if (plans_by_speed_) {
    inputs.speeds = KnownSpeeds();
  }
  if (cost_source_ == plan::CostSource::kFitted && fitted_.enough) {
    inputs.cost = fitted_.cost;
  }
  return inputs;
}

void StepMeasurements::AddStep(const plan::StepPlan& plan, double seconds) {
  ++steps_;
  // The first step of a run also connects and allocates; the second is the first to tell.
  if (steps_ == 1 || !fitted_.enough) {
    return;
  }
  const double planned =
      plan::Predict(plan, synchronization_, KnownSpeeds(), fitted_.cost).step_time;
  const double beyond = std::max(0.0, seconds - planned);
  const bool first = !std::exchange(told_, true);
  beyond_plan_seconds_ =
      first ? beyond : beyond_plan_seconds_ + kNewestShare * (beyond - beyond_plan_seconds_);
}

double StepMeasurements::PredictIdleShare(const plan::StepPlan& plan) const {
  const std::vector<double> speeds = KnownSpeeds();
  if (!fitted_.enough) {
    return plan::Predict(plan, synchronization_, speeds).idle_share;
  }
  const plan::StepPrediction predicted =
      plan::Predict(plan, synchronization_, speeds, fitted_.cost);
  const double capacity =
      (predicted.step_time + beyond_plan_seconds_) * static_cast<double>(predicted.busy.size());
  const double busy = std::accumulate(predicted.busy.begin(), predicted.busy.end(), 0.0);
  return capacity > 0 ? 1 - busy / capacity : 0;
}

plan::DrawQueue StepMeasurements::MakeDrawQueue(const plan::StepPlan& plan) const {
  plan::StepPlan priced = plan;
  double cost_per_second = 0;  // shows as workers draw
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
