// Decides when a unit's gradient is pushed, for all sinks. Counts contributions and microbatches
// for each unit separately, so they may come in any order (in a pipeline they do). Compute thread
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/model/model_spec.h"

namespace shoal::worker {

class PushRule {
 public:
  struct Options {
    // Once per step, summed over microbatches; otherwise after each.
    bool push_per_step = false;
    // With push per microbatch: contributions are not summed either (plan::PushesEachContribution).
    bool push_each_contribution = false;
    // By unit, per microbatch; 0: not this worker's unit (plan::StageContributions).
    std::vector<int> contributions;
    // Called for each unit when a microbatch is done with it; may be empty.
    std::function<void(int unit)> on_done;
  };
  explicit PushRule(const Options& options)
      : options_(options), done_(options.contributions.size(), 0) {}

  // The number of microbatches in the step, if known.
  void BeginStep(std::optional<int64_t> microbatches);
  // Counts a finished contribution. Returns whether to push the sum now.
  bool Done(int unit);

  bool push_per_step() const { return options_.push_per_step; }
  // Elements by unit; 0 for units without contributions.
  std::vector<int64_t> Counts(const std::vector<plan::UnitSpec>& units) const;

 private:
  const Options options_;
  std::optional<int64_t> microbatches_;  // of the step
  std::vector<int64_t> done_;            // by unit: contributions of this step
};

}  // namespace shoal::worker
