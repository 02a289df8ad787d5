// What microbatches cost, in seconds, and how fast each worker is, learned from what they took.
//
//   seconds = (per_microbatch + per_token tokens + per_squared_token squared_tokens) / speed
//
// with coefficients that are not negative and speeds whose geometric mean is 1. Least squares of
// relative errors over a bounded window of each worker's last microbatches, in which older ones
// count less; coefficients and speeds take turns until they settle. A microbatch that took many
// times longer than it should have (a first use, a pause) counts as if it had taken a few times
// longer.
//
// A value: not thread-safe, no clock. The coordinator feeds it from workers' reports.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/plan/step/cost_model.h"

namespace shoal::plan {

struct MeasuredMicrobatch {
  int worker = 0;
  int64_t tokens = 0;
  double squared_tokens = 0;  // sum over its sequences
  double seconds = 0;
};

struct FittedCosts {
  CostModel cost;              // seconds on a worker of speed 1
  std::vector<double> speeds;  // by worker; 1 for those of whom nothing is known
  // Enough microbatches of enough different lengths to price any: before that, `cost` says right
  // what microbatches like those measured take, and may be wrong about others.
  bool enough = false;
  int64_t measured = 0;  // microbatches in the windows
};

class CostFit {
 public:
  explicit CostFit(int workers);

  // Leaves out what cannot be: no tokens, squares below what the tokens allow, times that are not
  // positive, workers that are not there.
  void Add(const MeasuredMicrobatch& measured);

  FittedCosts Fit() const;

 private:
  std::vector<std::deque<MeasuredMicrobatch>> windows_;  // by worker, newest last
};

}  // namespace shoal::plan
