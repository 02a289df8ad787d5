// A config on emulated devices: real processes, messages and planning on this machine, beside the
// simulator on the very same minibatches with communication that takes no time.
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
  int64_t warmup_steps = 2;    // left out: connections are made, speeds are not known yet
  int64_t steps = 6;           // that count
};

struct EmulatedMethod {
  Method method;
  // By step that counts, in emulated seconds.
  std::vector<double> measured;
  std::vector<double> simulated;
  // Shares of all workers' time, over the steps that count.
  double idle_share = 0;
  double predicted_idle_share = 0;  // by the planner, in the coordinator
  double simulated_idle_share = 0;

  double mean_measured() const;
  double mean_simulated() const;
  // The median step's measured over simulated time, less 1.
  double difference() const;
};

struct EmulatedConfig {
  Config config;
  double time_scale = 0;
  double ideal_seconds = 0;  // mean of sum of work / sum of speeds, emulated
  std::vector<EmulatedMethod> methods;

  // Null where it was not run.
  const EmulatedMethod* Of(const sim::Choice& choice) const;
  // Over the baseline, both measured.
  double SpeedUp(const sim::Choice& choice) const;
};

// Runs one method after the other.
absl::StatusOr<EmulatedConfig> Emulate(const Config& config, const std::vector<Method>& methods,
                                       const EmulatedOptions& options, const TrainRunner& runner);

double Mean(const std::vector<double>& values);

}  // namespace shoal::bench
