#include "bench/on_demand/simulated.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/model/model_spec.h"

namespace shoal::bench {

const sim::ChoiceSummary& SimulatedConfig::Of(const sim::Choice& choice) const {
  const auto found = std::ranges::find(summaries, choice, &sim::ChoiceSummary::choice);
  SHOAL_CHECK(found != summaries.end());
  return *found;
}

double SimulatedConfig::SpeedUp(const sim::Choice& choice) const {
  return sim::SpeedUp(Of(choice), Of(sim::kBaseline));
}

sim::SimulatorOptions OptionsFor(const Config& config, const plan::ClusterSpec& cluster) {
  const auto spec = plan::NamedShape(config.shape);
  SHOAL_CHECK(spec.has_value());
  sim::SimulatorOptions options{.spec = *spec,
                                .policy = {plan::Residency::kLayer, plan::PushPolicy::kMicrobatch},
                                .cluster = WithDevices(cluster, config)};
  options.job.data.microbatch_tokens = config.microbatch_tokens();
  options.job.service.wire_type = DType::kBF16;
  return options;
}

sim::Minibatches FromSteps(const Steps& steps) {
  return [steps](int64_t step) -> absl::StatusOr<std::vector<plan::SampleLength>> {
    return steps[static_cast<size_t>(step - 1)];
  };
}

absl::StatusOr<SimulatedConfig> Simulate(const Config& config, const plan::ClusterSpec& cluster,
                                         int64_t steps) {
  SHOAL_ASSIGN_OR_RETURN(const Steps drawn, DrawSteps(config, steps));
  const sim::Simulator simulator(OptionsFor(config, cluster));
  SimulatedConfig result{.config = config};
  for (const sim::Choice& choice : sim::AllChoices()) {
    SHOAL_ASSIGN_OR_RETURN(result.summaries.emplace_back(),
                           sim::Summarize(simulator, choice, FromSteps(drawn), steps));
  }
  return result;
}

}  // namespace shoal::bench
