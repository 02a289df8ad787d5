// Learns what microbatches cost, in seconds, and how fast each worker is, from the times they took.
//
//   seconds = (per_microbatch + per_token tokens + per_squared_token squared_tokens) / speed
//
// The coefficients are not negative, and the geometric mean of the speeds is 1. Minimises the
// squares of relative errors over a bounded window of each worker's last microbatches, in which
// older ones weigh less; fits coefficients and speeds in turn until they settle. A microbatch that
// took many times longer than expected (a first use, a pause) counts as if it had taken a few times
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
  std::vector<double> speeds;  // by worker; 1 for workers without measurements
  // Whether there are enough microbatches of enough different lengths to price any. Before that,
  // `cost` is right for microbatches like those measured, and may be wrong for others.
  bool enough = false;
  int64_t measured = 0;  // microbatches in the windows
};

class CostFit {
 public:
  explicit CostFit(int workers);

  // Ignores what is impossible: no tokens, squares below what the tokens allow, times that are not
  // positive, unknown workers.
  void Add(const MeasuredMicrobatch& measured);
  // From now on worker w is the one that was `before[w]`, or a new one (-1).
  void Renumber(const std::vector<int>& before);

  FittedCosts Fit() const;

 private:
  std::vector<std::deque<MeasuredMicrobatch>> windows_;  // by worker, newest last
};

}  // namespace shoal::plan
