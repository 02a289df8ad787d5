// The plan of one step: which samples go through the model together (microbatches, packed under a
// token limit) and which worker group runs them. A pure function from lengths to a plan:
// deterministic, same on every machine. Method and names: ODC (arXiv 2601.19362), LB-Mini:
// Karmarkar-Karp over workers by cost, unequal counts, then each worker packs for itself under the
// limit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/balanced_split.h"
#include "plan/cost_model.h"

namespace shoal::plan {

struct SampleLength {
  int64_t sample = 0;  // id in the dataset
  int64_t tokens = 0;
  int64_t targets = 0;
};

struct Microbatch {
  std::vector<int64_t> samples;  // ids, in the order in which they are packed
  int64_t tokens = 0;
  int64_t targets = 0;
  double cost = 0;

  bool operator==(const Microbatch&) const = default;
};

struct StepPlan {
  std::vector<std::vector<Microbatch>> workers;  // by worker group; a group may have none
  int64_t tokens = 0;
  int64_t targets = 0;  // of the whole minibatch: loss scale is 1 / targets

  bool operator==(const StepPlan&) const = default;
};

struct PlanOptions {
  int workers = 1;
  int64_t microbatch_tokens = 4096;
};

// Each sample is in exactly one microbatch (a sample that is listed twice, in two). Workers get
// what BalancedSplit gives them; each then needs as few microbatches as the limit allows, costliest
// first. InvalidArgument names a sample longer than microbatch_tokens.
absl::StatusOr<StepPlan> PlanStep(std::span<const SampleLength> samples, const PlanOptions& options,
                                  const CostModel& cost);

// Which samples form step `step` (the first is 1): a walk over seeded permutations of the dataset,
// one per data pass; a minibatch may span two passes, and may be larger than the dataset. All
// counts are positive. Depends on (seed, step, minibatch, samples) alone, so resuming needs nothing
// more.
std::vector<int64_t> MinibatchSamples(int64_t step, int64_t minibatch_samples,
                                      int64_t dataset_samples, uint64_t seed, bool shuffle);

}  // namespace shoal::plan
