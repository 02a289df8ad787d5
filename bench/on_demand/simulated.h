// A config in the simulator, on a described cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/on_demand/config.h"
#include "core/sim/comparison.h"

namespace shoal::bench {

struct SimulatedConfig {
  Config config;
  std::vector<sim::ChoiceSummary> summaries;  // of sim::AllChoices()

  const sim::ChoiceSummary& Of(const sim::Choice& choice) const;
  // Over the baseline.
  double SpeedUp(const sim::Choice& choice) const;
};

// Weights are fetched for each use and gradients pushed for each microbatch, as sharded training
// does it. The job's other parts are its defaults, with weights in bf16 and gradients in fp32.
sim::SimulatorOptions OptionsFor(const Config& config, const plan::ClusterSpec& cluster);

// The devices of `cluster` are the config's.
absl::StatusOr<SimulatedConfig> Simulate(const Config& config, const plan::ClusterSpec& cluster,
                                         int64_t steps);

sim::Minibatches FromSteps(const Steps& steps);

}  // namespace shoal::bench
