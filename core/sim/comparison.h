// Runs the same minibatches under every way to assign and to synchronise, for comparison: the table
// of `shoal simulate` and the short answer of `shoal plan`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job/assignment.h"
#include "core/plan/step/lengths.h"
#include "core/plan/step/step_plan.h"
#include "core/sim/simulator.h"

namespace shoal::sim {

// Returns the samples of step `step` (the first is 1), always the same ones.
using Minibatches = std::function<absl::StatusOr<std::vector<plan::SampleLength>>(int64_t step)>;

// Draws `samples` new samples for each step; every token is a target.
Minibatches DrawnMinibatches(const plan::LengthDistribution& lengths, int64_t samples,
                             uint64_t seed);

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
