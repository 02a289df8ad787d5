#include "worker/model/batch/batch_pairs.h"

#include <algorithm>
#include <numeric>

#include "core/base/check.h"
#include "worker/loss/preference.h"

namespace shoal::worker {

BatchPairs::BatchPairs(const PackedBatch& batch)
    : options_(*batch.preference), references_(batch.references) {
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    targets_.push_back(std::count_if(
        batch.labels.begin() + batch.cu_seqlens[s], batch.labels.begin() + batch.cu_seqlens[s + 1],
        [](int32_t label) { return label != formats::kIgnoredLabel; }));
  }
}

void BatchPairs::Compare(std::span<const float> log_probabilities) {
  SHOAL_CHECK(std::ssize(log_probabilities) ==
              std::accumulate(targets_.begin(), targets_.end(), int64_t{0}));
  sums_.clear();
  auto next = log_probabilities.begin();
  for (const int64_t targets : targets_) {
    sums_.push_back(std::accumulate(next, next + targets, 0.0));
    next += targets;
  }
  weights_.clear();
  loss_sum_ = 0;
  for (size_t s = 0; s + 1 < sums_.size(); s += 2) {
    PairSums pair = {.chosen = sums_[s],
                     .rejected = sums_[s + 1],
                     .chosen_targets = targets_[s],
                     .rejected_targets = targets_[s + 1]};
    if (!references_.empty()) {
      pair.reference_chosen = references_[s];
      pair.reference_rejected = references_[s + 1];
    }
    const PairLoss loss = LossOfPair(options_, pair);
    loss_sum_ += loss.loss;
    weights_.insert(weights_.end(), static_cast<size_t>(targets_[s]),
                    static_cast<float>(-loss.d_chosen));
    weights_.insert(weights_.end(), static_cast<size_t>(targets_[s + 1]),
                    static_cast<float>(-loss.d_rejected));
  }
}

}  // namespace shoal::worker
