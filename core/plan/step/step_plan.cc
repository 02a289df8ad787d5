#include "core/plan/step/step_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/status.h"
#include "core/plan/step/assign_packs.h"

namespace shoal::plan {
namespace {

// Where packs are not to follow from how many workers there are.
constexpr int kSteadyPackGroups = 4;

absl::Status CheckOptions(const StepPlanOptions& options) {
  if (options.workers < 1 || options.pack_groups < 0 || options.microbatch_tokens < 1) {
    return InvalidArgument(
        "a step needs at least one worker, pack groups that are not negative and one token per "
        "microbatch, not {}, {} and {}",
        options.workers, options.pack_groups, options.microbatch_tokens);
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
  if (sample.tokens < 1 || sample.targets < 0 || sample.targets > sample.tokens ||
      sample.first_tokens < 0 || sample.first_tokens >= sample.tokens) {
    return InvalidArgument("sample {} has {} tokens and {} targets", sample.sample, sample.tokens,
                           sample.targets);
  }
  return absl::OkStatus();
}

// Tokens of each; of one that is no pair the first has none.
std::array<int64_t, 2> SequencesOf(const SampleLength& sample) {
  return {sample.first_tokens, sample.tokens - sample.first_tokens};
}

Microbatch MakeMicrobatch(std::span<const SampleLength> samples, const std::vector<size_t>& items,
                          const CostModel& cost) {
  Microbatch microbatch;
  for (const size_t item : items) {
    microbatch.samples.push_back(samples[item].sample);
    microbatch.tokens += samples[item].tokens;
    microbatch.targets += samples[item].targets;
    for (const int64_t sequence : SequencesOf(samples[item])) {
      microbatch.squared_tokens += static_cast<double>(sequence) * static_cast<double>(sequence);
    }
  }
  microbatch.cost = cost.Microbatch(microbatch.tokens, microbatch.squared_tokens);
  return microbatch;
}

// Gives packs, whole, to the workers there are.
std::vector<std::vector<Microbatch>> GiveOut(const std::vector<std::vector<Microbatch>>& groups,
                                             const StepPlanOptions& options,
                                             Assignment assignment) {
  std::vector<Microbatch> packs;
  std::vector<double> costs;
  for (const std::vector<Microbatch>& group : groups) {
    for (const Microbatch& pack : group) {
      packs.push_back(pack);
      costs.push_back(pack.cost);
    }
  }
  std::vector<std::vector<Microbatch>> workers;
  for (const std::vector<size_t>& given :
       SplitByCost(costs, options.workers, assignment, options.speeds)) {
    std::vector<Microbatch>& microbatches = workers.emplace_back();
    for (const size_t pack : given) {
      microbatches.push_back(packs[pack]);
    }
  }
  return workers;
}

// Costliest first: the peak of memory shows at once, what is left when others are done is short,
// and microbatches that run at the same time on several workers are alike.
void SortByCost(std::vector<Microbatch>& microbatches) {
  std::stable_sort(microbatches.begin(), microbatches.end(),
                   [](const Microbatch& a, const Microbatch& b) { return a.cost > b.cost; });
}

void PadWithEmpty(std::vector<std::vector<Microbatch>>& workers) {
  size_t largest = 0;
  int64_t number = 0;
  for (const std::vector<Microbatch>& microbatches : workers) {
    largest = std::max(largest, microbatches.size());
    number += std::ssize(microbatches);
  }
  for (std::vector<Microbatch>& microbatches : workers) {
    while (microbatches.size() < largest) {
      microbatches.push_back({.number = number++});
    }
  }
}

void NumberPacks(std::vector<std::vector<Microbatch>>& groups) {
  int64_t number = 0;
  for (std::vector<Microbatch>& packs : groups) {
    for (Microbatch& pack : packs) {
      pack.number = number++;
    }
  }
}

}  // namespace

int64_t StepPlan::packs() const {
  int64_t packs = 0;
  for (const std::vector<Microbatch>& microbatches : workers) {
    packs += std::ssize(microbatches);
  }
  return packs;
}

const Microbatch* StepPlan::Find(int64_t number) const {
  for (const std::vector<Microbatch>& microbatches : workers) {
    const auto found = std::ranges::find(microbatches, number, &Microbatch::number);
    if (found != microbatches.end()) {
      return &*found;
    }
  }
  return nullptr;
}

int64_t PackGroups(const Job& job, int64_t groups) {
  if (job.plan.pack_groups > 0) {
    return job.plan.pack_groups;
  }
  return job.service.accumulate == Accumulate::kExact ? kSteadyPackGroups : groups;
}

StepPlanOptions StepPlanOptionsOf(const Job& job, int64_t groups, std::vector<double> speeds) {
  // Where no bits are promised, packs may follow speeds.
  const bool by_speed = job.service.accumulate != Accumulate::kExact && !speeds.empty();
  return {.workers = static_cast<int>(groups),
          .pack_groups = by_speed ? 0 : static_cast<int>(PackGroups(job, groups)),
          .microbatch_tokens = job.data.microbatch_tokens,
          .assignment = Resolved(job.plan.assignment, job.train.synchronization),
          .speeds = std::move(speeds),
          .equal_counts = job.train.synchronization == Synchronization::kLayer};
}

StepPlanOptions ValidationPlanOptionsOf(const Job& job, int64_t groups,
                                        std::vector<double> speeds) {
  return {.workers = static_cast<int>(groups),
          .pack_groups = kSteadyPackGroups,
          .microbatch_tokens = job.data.microbatch_tokens,
          .assignment = Assignment::kLbMini,
          .speeds = std::move(speeds),
          .equal_counts = job.train.synchronization == Synchronization::kLayer};
}

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
    plan.weight += sample.weight;
    tokens.push_back(sample.tokens);
    // The number of microbatches follows from the tokens, so each token carries its part of the
    // fixed cost of a microbatch.
    const auto [first, second] = SequencesOf(sample);
    costs.push_back(cost.Sequence(first) + cost.Sequence(second) +
                    cost.per_microbatch * static_cast<double>(sample.tokens) /
                        static_cast<double>(options.microbatch_tokens));
  }
  const Assignment assignment = Resolved(
      options.assignment, options.equal_counts ? Synchronization::kLayer : Synchronization::kStep);
  // A sample for itself is the same pack wherever it runs.
  const bool in_turn = assignment == Assignment::kNative || assignment == Assignment::kLocalSort;
  const bool for_workers = in_turn || options.pack_groups == 0;
  for (const ItemSets& packs :
       AssignPacks({.tokens = tokens, .costs = costs, .limit = options.microbatch_tokens},
                   for_workers ? options.workers : options.pack_groups, assignment,
                   for_workers ? options.speeds : std::vector<double>())) {
    std::vector<Microbatch>& microbatches = plan.workers.emplace_back();
    for (const std::vector<size_t>& pack : packs) {
      microbatches.push_back(MakeMicrobatch(samples, pack, cost));
    }
  }
  NumberPacks(plan.workers);
  if (!for_workers && (options.pack_groups != options.workers || !options.speeds.empty())) {
    plan.workers = GiveOut(plan.workers, options, assignment);
  }
  if (!in_turn) {
    std::ranges::for_each(plan.workers, SortByCost);
  }
  if (options.equal_counts) {
    PadWithEmpty(plan.workers);
  }
  return plan;
}

}  // namespace shoal::plan
