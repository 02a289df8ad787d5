// Learns costs and speeds from workers' reports, and decides which of it plans the job's steps. A
// value without clock or threads, owned by JobRun.
#pragma once

#include <cstdint>
#include <vector>

#include "core/job/job.h"
#include "core/plan/step/cost_fit.h"
#include "core/plan/step/draw_queue.h"
#include "core/plan/step/prediction.h"
#include "core/plan/step/step_plan.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/job/step_planner.h"

namespace shoal::server {

// What a committed step took.
struct RanStep {
  // Computing, summed over groups, of the worker that sets the group's pace.
  double pace_seconds = 0;
  double busy_seconds = 0;  // computing, of all workers together
  double seconds = 0;       // from handing it out
};

class StepMeasurements {
 public:
  // Plans are over worker groups.
  StepMeasurements(const plan::Job& job, int groups);

  // Of a step, the report of the worker that the group goes at the pace of.
  void Add(int group, const proto::FinishedReport& report);
  // All reports of the step are in: what follows uses them.
  void Refit() { fitted_ = fit_.Fit(); }

  // A step that ran this plan is committed.
  void AddStep(const plan::StepPlan& plan, const RanStep& ran);

  // Plans of this job change with what is measured: so the next one is worth waiting for.
  bool ShapePlans() const;
  PlanInputs Inputs() const;
  // Share of the workers' time that the plan will leave idle: because the plan is uneven, and, once
  // some steps ran, for as long as steps of late took beyond what their plans said
  // (handing out, transfers that nothing hid, the servers' update, workers that were slower than
  // they are on average).
  double PredictIdleShare(const plan::StepPlan& plan) const;
  // Workers draw the plan's microbatches from it.
  plan::DrawQueue MakeDrawQueue(const plan::StepPlan& plan) const;

 private:
  // What a plan predicts, and the seconds that one unit of it is worth: 0 while that is not known.
  struct Prediction {
    plan::StepPrediction step;
    double seconds_per_unit = 0;
  };
  Prediction Predict(const plan::StepPlan& plan) const;
  std::vector<double> KnownSpeeds() const;

  const plan::Assignment assignment_;
  const plan::CostSource cost_source_;
  const plan::Synchronization synchronization_;
  // In exact mode packs that are drawn do not follow measured speeds: who runs one does not matter
  // to the sum, so the result is that of the plan, whatever the run was like.
  const bool plans_by_speed_;
  const int groups_;
  const double stages_;  // of a group
  plan::CostFit fit_;
  plan::FittedCosts fitted_;
  int64_t steps_ = 0;
  double beyond_plan_seconds_ = 0;  // of a step, smoothed
  double seconds_per_cost_ = 0;     // of plans' own costs, by the last step; 0 before the first
  double stage_share_ = 1;  // what a stage computes to what its group's slowest does, by the
                            // last step
};

}  // namespace shoal::server
