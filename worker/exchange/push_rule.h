// Decides when the gradient of a unit goes out, for all sinks. Counts contributions and
// microbatches for each unit by itself, so they may come in any order (in a pipeline they do).
// Compute thread only.
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
    // Once microbatches are added up for the whole step; else after each.
    bool push_per_step = false;
    // With push per microbatch: contributions are not added up either
    // (plan::PushesEachContribution).
    bool push_each_contribution = false;
    // By unit, of a microbatch; 0: a unit that is not this worker's (plan::StageContributions).
    std::vector<int> contributions;
    // Told of every unit that a microbatch is done with; may be empty.
    std::function<void(int unit)> on_done;
  };
  explicit PushRule(const Options& options)
      : options_(options), done_(options.contributions.size(), 0) {}

  // How many microbatches the step has, where that is known.
  void BeginStep(std::optional<int64_t> microbatches);
  // A contribution is done; whether what was added up goes out with it.
  bool Done(int unit);

  bool push_per_step() const { return options_.push_per_step; }
  // Elements by unit of those with contributions; 0 of the others.
  std::vector<int64_t> Counts(const std::vector<plan::UnitSpec>& units) const;

 private:
  const Options options_;
  std::optional<int64_t> microbatches_;  // of the step
  std::vector<int64_t> done_;            // by unit: contributions of this step
};

}  // namespace shoal::worker
