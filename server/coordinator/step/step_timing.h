// Accounts for a step's time from workers' reports: how much was idle, and for whom each waited.
// Pure functions.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "core/job/assignment.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/step/worker_groups.h"

namespace shoal::server {

// A committed step. All lists are by worker.
struct StepTiming {
  int64_t step = 0;
  double seconds = 0;  // from handing out to commit
  plan::Synchronization synchronization = plan::Synchronization::kStep;
  WorkerGroups groups;
  std::vector<proto::FinishedReport> reports;
  std::vector<absl::Time> reported_at;
};

// 1 - time spent computing / (workers * seconds): within 0 and 1.
double IdleShare(const StepTiming& timing);

// Returns the model FLOPs utilization: `flops` of the step's tokens over what the workers' devices
// compute at most meanwhile; 0 if one of them does not say.
double Utilization(double flops, const StepTiming& timing);

// Says of each worker how its step is shared out, in place of the last one; its connections stay.
// The rest is its wait at the end.
void DescribeStep(const StepTiming& timing, std::vector<proto::LastStep>& last_steps);

// Takes over the report's connections where they are others: each worker has one with each server,
// and they seldom change.
void TakeConnections(const proto::FinishedReport& report, proto::LastStep& last);

}  // namespace shoal::server
