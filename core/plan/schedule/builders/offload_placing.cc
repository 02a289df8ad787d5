#include "core/plan/schedule/builders/offload_placing.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace shoal::plan {

OffloadPlacing::OffloadPlacing(std::span<const ComputeTimes> times, const ScheduleCosts& costs,
                               CopyStreams streams, int first_stage, int stages)
    : times_(times), streams_(streams), first_stage_(first_stage) {
  for (int device = 0; device < stages; ++device) {
    int64_t held = 0;
    held_[device].reserve(times[first_stage + device].size());
    for (const Action& action : times[first_stage + device].actions) {
      const int64_t bytes =
          costs.Of(first_stage + device, action.chunk, action.microbatch).activation_bytes;
      held += action.operation == Operation::kForward ? bytes : 0;
      held_[device].push_back(static_cast<double>(held));
      held -= IsBackwardForWeights(action.operation) ? bytes : 0;
    }
  }
}

OffloadPlacing::Result OffloadPlacing::Choose(std::vector<OffloadCandidate> candidates) {
  if (streams_.paired) {
    for (const OffloadCandidate& candidate : candidates) {
      margin_ = std::max({margin_, candidate.cost->offload, candidate.cost->reload});
    }
  }
  Result result;
  const auto brief =
      std::ranges::stable_partition(candidates, [&](const OffloadCandidate& candidate) {
        const ChunkCost& cost = *candidate.cost;
        const PlannedCopy best = {.offload_begin = candidate.forward_end,
                                  .reload_begin = candidate.backward_begin - margin_ - cost.reload};
        return cost.offload_bytes > 0 &&
               cost.offload + cost.reload + margin_ <= candidate.lifespan() &&
               Placed(candidate, best).Gains();
      });
  result.brief.assign(brief.begin(), brief.end());
  candidates.erase(brief.begin(), brief.end());
  std::ranges::stable_sort(candidates, std::greater<>(), &OffloadCandidate::lifespan);
  const size_t count = CountThatFits(candidates);
  const std::vector<PlannedCopy> copies = Plan(std::span(candidates).first(count));
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i < count && copies[i].moved) {
      if (const PlacedOffload placed = Placed(candidates[i], copies[i]); placed.Gains()) {
        result.placed.push_back(placed);
        continue;
      }
    }
    result.late.push_back(candidates[i]);
  }
  return result;
}

double OffloadPlacing::ReleaseTime(const PlacedOffload& placed) const {
  return placed.copy.offload_begin + placed.candidate.cost->offload + margin_;
}

// A copy is issued when the compute before it has ended; a release stands where nobody waits for
// its offload. Both are usually near the forward, the reload near the backward.
PlacedOffload OffloadPlacing::Placed(const OffloadCandidate& candidate,
                                     const PlannedCopy& copy) const {
  const ComputeTimes& times = times_[candidate.stage];
  PlacedOffload placed{.candidate = candidate,
                       .copy = copy,
                       .offload = candidate.forward_place + 1,
                       .prepare = candidate.backward_place};
  const double issue = copy.offload_begin + Rounding(copy.offload_begin);
  while (placed.offload < times.size() && times.ends[placed.offload] <= issue) {
    ++placed.offload;
  }
  placed.release = placed.offload;
  const double release = ReleaseTime(placed) - Rounding(ReleaseTime(placed));
  while (placed.release < times.size() && times.begins[placed.release] < release) {
    ++placed.release;
  }
  const double reload = copy.reload_begin + Rounding(copy.reload_begin);
  while (placed.prepare > 0 && times.ends[placed.prepare - 1] > reload) {
    --placed.prepare;
  }
  return placed;
}

std::vector<PlannedCopy> OffloadPlacing::Plan(std::span<const OffloadCandidate> candidates) const {
  std::vector<CopyJob> jobs;
  jobs.reserve(candidates.size());
  for (const OffloadCandidate& candidate : candidates) {
    jobs.push_back({.device = candidate.stage - first_stage_,
                    .ready = candidate.forward_end,
                    .due = candidate.backward_begin - margin_,
                    .offload = candidate.cost->offload,
                    .reload = candidate.cost->reload});
  }
  return PlanCopies(jobs, streams_);
}

// Returns how many of the candidates, the longest lived first, are offloaded. Searches for the
// largest number with which all are moved, to within a part in 32, and takes of the numbers tried
// the one that leaves least on the devices at once.
size_t OffloadPlacing::CountThatFits(std::span<const OffloadCandidate> candidates) const {
  size_t best = 0;
  double least = std::numeric_limits<double>::max();
  size_t fitting = 0;
  size_t too_many = candidates.size() + 1;
  for (size_t count = candidates.size(); fitting + candidates.size() / 32 + 1 < too_many;
       count = fitting + (too_many - fitting) / 2) {
    const std::vector<PlannedCopy> copies = Plan(candidates.first(count));
    if (std::ranges::all_of(copies, &PlannedCopy::moved)) {
      if (count == candidates.size()) {
        return count;
      }
      fitting = count;
    } else {
      too_many = count;
    }
    if (const double peaks = PeaksWith(candidates, copies); peaks < least) {
      least = peaks;
      best = count;
    }
  }
  return best;
}

// Returns the sum of the stages' peaks in bytes.
double OffloadPlacing::PeaksWith(std::span<const OffloadCandidate> candidates,
                                 std::span<const PlannedCopy> copies) const {
  std::array<std::vector<double>, 2> changes;  // before each index of the list
  for (size_t device = 0; device < changes.size(); ++device) {
    changes[device].resize(held_[device].size() + 1);
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].moved) {
      continue;
    }
    if (const PlacedOffload placed = Placed(candidates[i], copies[i]); placed.Gains()) {
      const auto bytes = static_cast<double>(candidates[i].cost->offload_bytes);
      changes[candidates[i].stage - first_stage_][placed.release] -= bytes;
      changes[candidates[i].stage - first_stage_][placed.prepare] += bytes;
    }
  }
  double peaks = 0;
  for (size_t device = 0; device < changes.size(); ++device) {
    double change = 0;
    double peak = 0;
    for (size_t place = 0; place < held_[device].size(); ++place) {
      change += changes[device][place];
      peak = std::max(peak, held_[device][place] + change);
    }
    peaks += peak;
  }
  return peaks;
}

}  // namespace shoal::plan
