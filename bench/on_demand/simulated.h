// A setting in the simulator, on a described cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/on_demand/setting.h"
#include "core/sim/comparison.h"

namespace shoal::bench {

struct SimulatedSetting {
  Setting setting;
  std::vector<sim::ChoiceSummary> summaries;  // of sim::AllChoices()

  const sim::ChoiceSummary& Of(const sim::Choice& choice) const;
  // Over the baseline.
  double SpeedUp(const sim::Choice& choice) const;
};

// Weights are fetched for each use and gradients pushed for each microbatch, as sharded training
// does it. The job's other parts are its defaults, with weights in bf16 and gradients in fp32.
sim::SimulatorOptions OptionsFor(const Setting& setting, const plan::ClusterSpec& cluster);

// The devices of `cluster` are the setting's.
absl::StatusOr<SimulatedSetting> Simulate(const Setting& setting, const plan::ClusterSpec& cluster,
                                          int64_t steps);

sim::Minibatches FromSteps(const Steps& steps);

}  // namespace shoal::bench
