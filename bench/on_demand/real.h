// Trains for real on this machine's CPU: a small model on real conversations with two workers, on
// demand and with `layer` in turns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/on_demand/method.h"
#include "bench/on_demand/train_run.h"

namespace shoal::bench {

struct RealMethod {
  sim::Choice choice;
  double seconds = 0;  // of a step, see RealRun
  double idle_share = 0;
};
// One minibatch size; all methods run the same samples. A step's time is the median of its rounds,
// a method's the mean of its steps.
struct RealRun {
  int64_t minibatch_samples = 0;
  std::vector<RealMethod> methods;

  // Returns the fastest with this synchronization.
  const RealMethod& Best(plan::Synchronization synchronization) const;
};

struct RealOptions {
  std::vector<int64_t> minibatch_samples = {8, 16, 32};
  int64_t steps = 16;  // the first two do not count
  int64_t rounds = 3;
};

// Reads stories260k and gsm8k-chats from the folder `test_data`.
absl::StatusOr<std::vector<RealRun>> RunReal(const std::string& test_data,
                                             const RealOptions& options, const TrainRunner& runner);

}  // namespace shoal::bench
