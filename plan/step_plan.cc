#include "plan/step_plan.h"

#include <algorithm>

#include "common/status.h"
#include "plan/packing.h"

namespace shoal::plan {
namespace {

Microbatch MakeMicrobatch(std::span<const SampleLength> samples, const std::vector<size_t>& items,
                          std::span<const double> costs) {
  Microbatch microbatch;
  for (const size_t item : items) {
    microbatch.samples.push_back(samples[item].sample);
    microbatch.tokens += samples[item].tokens;
    microbatch.targets += samples[item].targets;
    microbatch.cost += costs[item];
  }
  return microbatch;
}

// The microbatches of one worker, costliest first: what needs most memory shows at once, and what
// is left when others are done is short.
std::vector<Microbatch> PackWorker(std::span<const SampleLength> samples,
                                   const std::vector<size_t>& items, std::span<const double> costs,
                                   int64_t limit) {
  std::vector<int64_t> worker_tokens;
  std::vector<double> worker_costs;
  for (const size_t item : items) {
    worker_tokens.push_back(samples[item].tokens);
    worker_costs.push_back(costs[item]);
  }
  std::vector<Microbatch> microbatches;
  for (std::vector<size_t>& pack : PackUnderLimit(worker_tokens, worker_costs, limit)) {
    for (size_t& item : pack) {
      item = items[item];
    }
    microbatches.push_back(MakeMicrobatch(samples, pack, costs));
  }
  std::stable_sort(microbatches.begin(), microbatches.end(),
                   [](const Microbatch& a, const Microbatch& b) { return a.cost > b.cost; });
  return microbatches;
}

}  // namespace

absl::StatusOr<StepPlan> PlanStep(std::span<const SampleLength> samples, const PlanOptions& options,
                                  const CostModel& cost) {
  if (options.workers < 1 || options.microbatch_tokens < 1) {
    return InvalidArgument(
        "a step needs at least one worker and one token per microbatch, not {} and {}",
        options.workers, options.microbatch_tokens);
  }
  StepPlan plan;
  std::vector<double> costs;
  for (const SampleLength& sample : samples) {
    if (sample.tokens > options.microbatch_tokens) {
      return InvalidArgument(
          "sample {} has {} tokens, more than data.microbatch_tokens ({}); raise that, or lower "
          "data.max_sequence_tokens",
          sample.sample, sample.tokens, options.microbatch_tokens);
    }
    if (sample.tokens < 1 || sample.targets < 0 || sample.targets > sample.tokens) {
      return InvalidArgument("sample {} has {} tokens and {} targets", sample.sample, sample.tokens,
                             sample.targets);
    }
    plan.tokens += sample.tokens;
    plan.targets += sample.targets;
    costs.push_back(cost.Sequence(sample.tokens));
  }
  for (const std::vector<size_t>& items : BalancedSplit(costs, options.workers)) {
    plan.workers.push_back(PackWorker(samples, items, costs, options.microbatch_tokens));
  }
  return plan;
}

}  // namespace shoal::plan
