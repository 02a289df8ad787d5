// Losses of a pair of replies, from the log-probabilities that the model gives them (docs/
// preference.md has the formulas). Pure.
#pragma once

#include <cstdint>

#include "core/job/job.h"

namespace shoal::worker {

// Log-probabilities of replies, summed over their target tokens.
struct PairSums {
  double chosen = 0;
  double rejected = 0;
  // What the model said before step 1; 0 where the loss has no reference.
  double reference_chosen = 0;
  double reference_rejected = 0;
  int64_t chosen_targets = 0;  // at least 1
  int64_t rejected_targets = 0;
};

struct PairLoss {
  double loss = 0;
  double d_chosen = 0;    // d loss / d sums.chosen
  double d_rejected = 0;  // d loss / d sums.rejected
};

PairLoss LossOfPair(const plan::PreferenceOptions& options, const PairSums& sums);

}  // namespace shoal::worker
