// Learns costs and speeds from workers' reports, and decides which of them shape the plans of the
// job's steps. Has no clock or threads; JobRun owns it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/job/job.h"
#include "core/plan/step/cost_fit.h"
#include "core/plan/step/draw_queue.h"
#include "core/plan/step/prediction.h"
#include "core/plan/step/step_plan.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/step/step_planner.h"

namespace shoal::server {

// Durations of a committed step.
struct RanStep {
  // Computing by the worker that sets its group's pace, summed over groups.
  double pace_seconds = 0;
  double busy_seconds = 0;  // computing, summed over workers
  double seconds = 0;       // since it was handed out
};

class StepMeasurements {
 public:
  // Plans are for worker groups.
  StepMeasurements(const plan::Job& job, int groups);

  // From now on group g is the one that was `before[g]`, or a new one (-1).
  void Renumber(const std::vector<int>& before);

  // Adds a step's report of the worker that sets the group's pace.
  void Add(int group, const proto::FinishedReport& report);
  // Call when all reports of the step are in: later plans use them.
  void Refit() { fitted_ = fit_.Fit(); }

  // Call when a step that ran this plan is committed.
  void AddStep(const plan::StepPlan& plan, const RanStep& ran);

  // Whether measurements change the job's plans, so that waiting for the next one pays.
  bool ShapePlans() const;
  PlanInputs Inputs() const;
  // Predicts the share of workers' time that the plan leaves idle: through its unevenness and, once
  // some steps ran, through the time that recent steps took beyond their plans (handing out,
  // exposed transfers, the servers' update, workers slower than their average).
  double PredictIdleShare(const plan::StepPlan& plan) const;
  // Makes the queue from which workers draw the plan's microbatches.
  plan::DrawQueue MakeDrawQueue(const plan::StepPlan& plan) const;

 private:
  // A plan's predicted cost, and the seconds per unit of it: 0 while unknown.
  struct Prediction {
    plan::StepPrediction step;
    double seconds_per_unit = 0;
  };
  Prediction Predict(const plan::StepPlan& plan) const;
  std::vector<double> KnownSpeeds() const;

  const plan::Assignment assignment_;
  const plan::Synchronization synchronization_;
  const bool plans_by_speed_;
  // Not in exact mode, where the job alone decides what is packed: the result is the same, whatever
  // happens in the run.
  const bool plans_by_fit_;
  int groups_;
  const double stages_;  // per group
  plan::CostFit fit_;
  plan::FittedCosts fitted_;
  int64_t steps_ = 0;
  double beyond_plan_seconds_ = 0;  // of a step, smoothed
  double seconds_per_cost_ = 0;     // of plans' own costs, in the last step; 0 before the first
  double stage_share_ = 1;          // a stage's computing relative to its group's slowest,
                                    // in the last step
};

}  // namespace shoal::server
