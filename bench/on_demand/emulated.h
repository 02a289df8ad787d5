// Runs a config on emulated devices: real processes, messages and planning on this machine.
// Compares with the simulator on the same minibatches, where communication takes no time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/on_demand/config.h"
#include "bench/on_demand/method.h"
#include "bench/on_demand/train_run.h"
#include "bench/report/report.h"

namespace shoal::bench {

struct EmulatedOptions {
  double step_seconds = 0.25;  // real, of the golden config's mean lb-mini step
  int64_t warmup_steps = 2;    // not counted: processes connect, speeds are unknown
  int64_t steps = 6;           // counted
};

struct EmulatedMethod {
  Method method;
  // For each counted step, emulated seconds.
  std::vector<double> measured;
  std::vector<double> simulated;
  // Shares of all workers' time over the counted steps.
  double idle_share = 0;
  double predicted_idle_share = 0;  // by the planner, in the coordinator
  double simulated_idle_share = 0;

  double mean_measured() const;
  double mean_simulated() const;
  // Returns measured over simulated time of the median step, less 1.
  double difference() const;
};

struct EmulatedConfig {
  Config config;
  double ideal_seconds = 0;  // mean of sum of work / sum of speeds, emulated
  std::vector<EmulatedMethod> methods;

  // Returns null if it was not run.
  const EmulatedMethod* Of(const sim::Choice& choice) const;
  // Returns the measured speed-up over the baseline.
  double SpeedUp(const sim::Choice& choice) const;
};

// Runs the methods one after the other.
absl::StatusOr<EmulatedConfig> Emulate(const Config& config, const std::vector<Method>& methods,
                                       const EmulatedOptions& options, const TrainRunner& runner);

double Mean(const std::vector<double>& values);

}  // namespace shoal::bench
