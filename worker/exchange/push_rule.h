// Decides when a unit's gradient is pushed, and as which contribution (core/model/contribution.h),
// for all sinks. Counts contributions and microbatches for each unit separately, so they may come
// in any order (in a pipeline they do). Compute thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/model/contribution.h"
#include "core/model/model_spec.h"

namespace shoal::worker {

// A worker's part of a step, as far as its pushes go.
struct PushWork {
  std::optional<int64_t> microbatches;  // of this worker, if known
  int64_t packs = 0;                    // of the step, whoever runs them
  int64_t slot = 0;                     // of this work among all that is given out in the attempt
};

class PushRule {
 public:
  struct Options {
    // Once per step, summed over microbatches; otherwise after each.
    bool push_per_step = false;
    // With push per microbatch: contributions are not summed either (plan::PushesEachContribution).
    bool push_each_contribution = false;
    // By unit, per microbatch; 0: not this worker's unit (plan::StageContributions), or frozen.
    std::vector<int> contributions;
    // By unit, of all workers: plan::KeysPerPack.
    std::vector<int> keys_per_pack;
    // Called for each unit when a microbatch is done with it; may be empty.
    std::function<void(int unit)> on_done;
  };
  explicit PushRule(const Options& options)
      : options_(options), done_(options.contributions.size(), 0) {}

  // Whether there are contributions to the unit's gradient.
  bool Wants(int unit) const { return options_.contributions[static_cast<size_t>(unit)] > 0; }

  void BeginStep(const PushWork& work);
  // What follows is of this pack.
  void AtPack(int64_t number) { pack_ = number; }
  // Counts a finished contribution, or that the backward is through a unit that wants none; `tied`:
  // the head's to the embedding's matrix. Returns as what to push the sum now, if it is to be
  // pushed.
  std::optional<plan::Contribution> Done(int unit, bool tied = false);
  // As what to push the sum over all of this work.
  plan::Contribution OfWork(int unit) const;

  bool push_per_step() const { return options_.push_per_step; }
  // Elements by unit; 0 for units without contributions.
  std::vector<int64_t> Counts(const std::vector<plan::UnitSpec>& units) const;

 private:
  const Options options_;
  PushWork work_;
  int64_t pack_ = 0;
  std::vector<int64_t> done_;  // by unit: contributions of this step
};

}  // namespace shoal::worker
