// Runs the same minibatches under every way to assign and to synchronise, for comparison: the table
// of `shoal simulate` and the short answer of `shoal plan`.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job/assignment.h"
#include "core/sim/minibatches.h"
#include "core/sim/simulator.h"

namespace shoal::sim {

struct Choice {
  plan::Synchronization synchronization = plan::Synchronization::kStep;
  plan::Assignment assignment = plan::Assignment::kLbMini;

  bool operator==(const Choice&) const = default;
};

// What on-demand is compared with: collective sharded training with its best balance. A gain over
// an unbalanced baseline is no gain.
inline constexpr Choice kBaseline = {plan::Synchronization::kLayer, plan::Assignment::kLbMicro};

// Returns all meaningful choices, the unbalanced ones first, including kBaseline.
std::vector<Choice> AllChoices();

// Over the simulated steps.
struct ChoiceSummary {
  Choice choice;
  double mean_seconds = 0;
  double p95_seconds = 0;
  double idle_share = 0;  // of all workers' time: what is not compute
  // Parts of idle_share.
  double get_wait_share = 0;
  double push_wait_share = 0;
  double layer_wait_share = 0;
  double step_wait_share = 0;
  StepBytes bytes;  // of all steps together
  int64_t microbatches = 0;
  int64_t barriers = 0;
  int64_t steps = 0;

  double PerStep(double sum) const { return sum / static_cast<double>(steps); }
};

// Runs `choice` for steps 1 to `steps`.
absl::StatusOr<ChoiceSummary> Summarize(const Simulator& simulator, const Choice& choice,
                                        const Minibatches& minibatches, int64_t steps);

// Returns the mean step time of `baseline` divided by that of `choice`.
double SpeedUp(const ChoiceSummary& choice, const ChoiceSummary& baseline);

}  // namespace shoal::sim
