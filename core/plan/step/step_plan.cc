#include "core/plan/step/step_plan.h"

#include <algorithm>

#include "core/base/status.h"
#include "core/plan/step/assign_packs.h"

namespace shoal::plan {
namespace {

absl::Status CheckOptions(const StepPlanOptions& options) {
  if (options.workers < 1 || options.microbatch_tokens < 1) {
    return InvalidArgument(
        "a step needs at least one worker and one token per microbatch, not {} and {}",
        options.workers, options.microbatch_tokens);
  }
  if (!options.speeds.empty() && options.speeds.size() != static_cast<size_t>(options.workers)) {
    return InvalidArgument("there are {} speeds for {} workers", options.speeds.size(),
                           options.workers);
  }
  for (size_t worker = 0; worker < options.speeds.size(); ++worker) {
    if (!(options.speeds[worker] > 0)) {
      return InvalidArgument("the speed of worker {} is {}, not above 0", worker,
                             options.speeds[worker]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSample(const SampleLength& sample, int64_t limit) {
  if (sample.tokens > limit) {
    return InvalidArgument(
        "sample {} has {} tokens, more than data.microbatch_tokens ({}); raise that, or lower "
        "data.max_sequence_tokens",
        sample.sample, sample.tokens, limit);
  }
  if (sample.tokens < 1 || sample.targets < 0 || sample.targets > sample.tokens) {
    return InvalidArgument("sample {} has {} tokens and {} targets", sample.sample, sample.tokens,
                           sample.targets);
  }
  return absl::OkStatus();
}

Microbatch MakeMicrobatch(std::span<const SampleLength> samples, const std::vector<size_t>& items,
                          const CostModel& cost) {
  Microbatch microbatch;
  for (const size_t item : items) {
    const auto tokens = static_cast<double>(samples[item].tokens);
    microbatch.samples.push_back(samples[item].sample);
    microbatch.tokens += samples[item].tokens;
    microbatch.targets += samples[item].targets;
    microbatch.squared_tokens += tokens * tokens;
  }
  microbatch.cost = cost.Microbatch(microbatch.tokens, microbatch.squared_tokens);
  return microbatch;
}

// Costliest first: the peak of memory shows at once, what is left when others are done is short,
// and microbatches that run at the same time on several workers are alike.
void SortByCost(std::vector<Microbatch>& microbatches) {
  std::stable_sort(microbatches.begin(), microbatches.end(),
                   [](const Microbatch& a, const Microbatch& b) { return a.cost > b.cost; });
}

void PadWithEmpty(std::vector<std::vector<Microbatch>>& workers) {
  size_t largest = 0;
  for (const std::vector<Microbatch>& microbatches : workers) {
    largest = std::max(largest, microbatches.size());
  }
  for (std::vector<Microbatch>& microbatches : workers) {
    microbatches.resize(largest);
  }
}

}  // namespace

absl::StatusOr<StepPlan> PlanStep(std::span<const SampleLength> samples,
                                  const StepPlanOptions& options, const CostModel& cost) {
  SHOAL_RETURN_IF_ERROR(CheckOptions(options));
  StepPlan plan;
  std::vector<int64_t> tokens;
  std::vector<double> costs;
  for (const SampleLength& sample : samples) {
    SHOAL_RETURN_IF_ERROR(CheckSample(sample, options.microbatch_tokens));
    plan.tokens += sample.tokens;
    plan.targets += sample.targets;
    tokens.push_back(sample.tokens);
    // The number of microbatches follows from the tokens, so each token carries its part of the
    // fixed cost of a microbatch.
    costs.push_back(cost.Sequence(sample.tokens) +
                    cost.per_microbatch * static_cast<double>(sample.tokens) /
                        static_cast<double>(options.microbatch_tokens));
  }
  const Assignment assignment = Resolved(
      options.assignment, options.equal_counts ? Synchronization::kLayer : Synchronization::kStep);
  for (const ItemSets& packs :
       AssignPacks({.tokens = tokens, .costs = costs, .limit = options.microbatch_tokens},
                   options.workers, assignment, options.speeds)) {
    std::vector<Microbatch>& microbatches = plan.workers.emplace_back();
    for (const std::vector<size_t>& pack : packs) {
      microbatches.push_back(MakeMicrobatch(samples, pack, cost));
    }
    if (assignment != Assignment::kNative && assignment != Assignment::kLocalSort) {
      SortByCost(microbatches);
    }
  }
  if (options.equal_counts) {
    PadWithEmpty(plan.workers);
  }
  return plan;
}

}  // namespace shoal::plan
