// Which samples a step trains on. Depends only on (seed, step, minibatch, dataset), so resuming
// needs no other state.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::plan {

// Returns the samples of step `step` (the first is 1): a walk over seeded permutations of the
// dataset, one per data pass; a minibatch may span two passes, and may be larger than the dataset.
// All counts must be positive.
std::vector<int64_t> MinibatchSamples(int64_t step, int64_t minibatch_samples,
                                      int64_t dataset_samples, uint64_t seed, bool shuffle);

// A dataset of several sources, one after the other.
struct Mixture {
  std::vector<int64_t> samples;  // of each source
  std::vector<double> weights;   // by source, positive: its part of each pass is that of their sum
};

struct Dataset {
  int64_t samples = 0;
  Mixture mixture;  // without weights each sample comes once a pass
};

// How many samples of a pass are of each source. A pass has as many as the dataset, shared out by
// largest remainder; a source with a small weight may have none.
std::vector<int64_t> SharesOfPass(const Mixture& mixture);

// The same walk where sources have weights: it goes through each source in seeded permutations of
// its own, all of its samples before any of them comes again.
std::vector<int64_t> MinibatchSamples(int64_t step, int64_t minibatch_samples,
                                      const Mixture& mixture, uint64_t seed, bool shuffle);

// That of the two which the dataset asks for.
std::vector<int64_t> MinibatchSamples(int64_t step, int64_t minibatch_samples,
                                      const Dataset& dataset, uint64_t seed, bool shuffle);

}  // namespace shoal::plan
