// Simulates a config on a described cluster.
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
  // Returns the speed-up over the baseline.
  double SpeedUp(const sim::Choice& choice) const;
};

// Fetches weights for each use and pushes gradients for each microbatch, as sharded training does.
// Weights are bf16, gradients fp32; all else of the job is default.
sim::SimulatorOptions OptionsFor(const Config& config, const plan::ClusterSpec& cluster);

// Takes devices from the config, all else from `cluster`.
absl::StatusOr<SimulatedConfig> Simulate(const Config& config, const plan::ClusterSpec& cluster,
                                         int64_t steps);

sim::Minibatches FromSteps(const Steps& steps);

}  // namespace shoal::bench
