// What is taken of a microbatch of pairs between the two passes over the head: the first gives the
// log-probabilities of targets, from which follow the losses of the pairs and what each target's
// row counts for in the second.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/job/job.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

class BatchPairs {
 public:
  // `batch` was validated, and is of pairs.
  explicit BatchPairs(const PackedBatch& batch);

  // Takes the log-probabilities of all targets, in their order.
  void Compare(std::span<const float> log_probabilities);

  // After Compare. What a target's loss counts for: minus d loss of its pair / d log-probability.
  const std::vector<float>& weights() const { return weights_; }  // [targets]
  double loss_sum() const { return loss_sum_; }                   // over the pairs
  // Log-probabilities of the sequences.
  const std::vector<double>& sums() const { return sums_; }

 private:
  const plan::PreferenceOptions options_;
  const std::vector<double> references_;  // of the sequences; empty: none
  std::vector<int64_t> targets_;          // of the sequences
  std::vector<float> weights_;
  std::vector<double> sums_;
  double loss_sum_ = 0;
};

}  // namespace shoal::worker
