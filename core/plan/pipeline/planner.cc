#include "core/plan/pipeline/planner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/plan/pipeline/search.h"
#include "core/plan/pipeline/variants.h"
#include "fmt/format.h"

namespace shoal::plan {
namespace {

absl::Status Check(const PipelineRequest& request) {
  SHOAL_RETURN_IF_ERROR(Validate(request.spec));
  SHOAL_RETURN_IF_ERROR(Validate(request.pace));
  if (request.stages < 1 || request.chunks < 0) {
    return InvalidArgument("{} stages of {} chunks: at least one stage is needed", request.stages,
                           request.chunks);
  }
  if (request.microbatches.empty()) {
    return InvalidArgument("a pipeline is planned for a step with at least one microbatch");
  }
  if (!request.budgets.empty() && request.budgets.size() != static_cast<size_t>(request.stages)) {
    return InvalidArgument("there are memory budgets for {} stages and not for {}",
                           request.budgets.size(), request.stages);
  }
  return absl::OkStatus();
}

std::string NameOf(const PipelineChoice& choice) {
  std::string name = ToString(choice.schedule);
  if (choice.chunks > 1) {
    name += fmt::format(", {} chunks", choice.chunks);
  }
  if (choice.offloaded_chunks > 0) {
    name += fmt::format(", {:.3g} offloaded", choice.offloaded_chunks);
  }
  if (choice.recompute != Recompute::kNone) {
    name += fmt::format(", {} recompute", Name(choice.recompute));
  }
  return name;
}

std::string Over(const Excess& excess) {
  return fmt::format("over the {} budget of stage {} by {}", excess.host ? "host" : "device",
                     excess.stage, FormatBytes(excess.bytes));
}

// Relative to the time.
constexpr double kWorthSaying = 0.0005;

std::string WhyItWon(const SearchResult& result, const Searched& winner) {
  const Searched* faster = nullptr;  // the fastest of those that do not fit
  for (const Searched& candidate : result.candidates) {
    if (candidate.knowledge == Knowledge::kRefused &&
        candidate.seconds < (1 - kWorthSaying) * winner.seconds &&
        (faster == nullptr || candidate.seconds < faster->seconds)) {
      faster = &candidate;
    }
  }
  if (faster == nullptr) {
    return fmt::format("the fastest of {} candidates, and it fits", result.candidates.size());
  }
  return fmt::format("the fastest that fits; {} would take {:.1f} % less time, but is {}",
                     NameOf(faster->choice), 100 * (1 - faster->seconds / winner.seconds),
                     Over(*faster->measured.excess));
}

std::string WhyItLost(const Searched& candidate, const Searched& winner) {
  if (candidate.knowledge == Knowledge::kRefused) {
    return Over(*candidate.measured.excess);
  }
  const double slower = 100 * (candidate.seconds / winner.seconds - 1);
  if (candidate.knowledge == Knowledge::kSimulated) {
    return slower < 0.05 ? "as fast, but less simple" : fmt::format("slower by {:.1f} %", slower);
  }
  const std::string_view known = candidate.knowledge == Knowledge::kCompute ? " by compute alone"
                                 : candidate.knowledge == Knowledge::kTimed
                                     ? " before it is offloaded enough to fit"
                                     : "";
  return slower < 0.05 ? fmt::format("estimated as fast{}", known)
                       : fmt::format("estimated slower by {:.1f} %{}", slower, known);
}

PipelineCandidate CandidateOf(const Searched& searched, std::string verdict) {
  return {.choice = searched.choice,
          .step_seconds = searched.seconds,
          .bubble_share = searched.measured.bubble_share,
          .copy_ratio = searched.copy_ratio,
          .device_bytes = searched.measured.device_bytes,
          .host_bytes = searched.measured.host_bytes,
          .fits = searched.knowledge == Knowledge::kSimulated,
          .simulated = searched.knowledge == Knowledge::kSimulated,
          .verdict = std::move(verdict)};
}

// If nothing fits: names what exceeds its budget by least.
absl::Status NothingFits(const PipelineRequest& request, const SearchResult& result) {
  const auto& least = *std::ranges::min_element(
      result.candidates, {},
      [](const Searched& candidate) { return candidate.measured.excess->bytes; });
  const Excess& excess = *least.measured.excess;
  const StageBudget& budget = request.budgets[excess.stage];
  const int64_t limit = excess.host ? budget.host : budget.device;
  const std::string other =
      excess.host || budget.other == 0
          ? ""
          : fmt::format(" ({} of it for other things than activations)", FormatBytes(budget.other));
  return ResourceExhausted(
      "none of {} schedules of {} stages fits: {} needs least, {} of {} memory on stage {}{}, "
      "where there are {}; use more stages, shorter microbatches (data.microbatch_tokens) or a "
      "larger cluster.pipeline.{}_memory",
      result.candidates.size(), request.stages, NameOf(least.choice),
      FormatBytes(limit + excess.bytes), excess.host ? "host" : "device", excess.stage, other,
      FormatBytes(limit), excess.host ? "host" : "device");
}

}  // namespace

absl::StatusOr<PipelinePlan> PlanPipeline(const PipelineRequest& request) {
  SHOAL_RETURN_IF_ERROR(Check(request));
  SHOAL_ASSIGN_OR_RETURN(std::vector<Variant> variants, VariantsOf(request));
  SHOAL_ASSIGN_OR_RETURN(const SearchResult result, SearchPipelines(request, std::move(variants)));
  if (!result.winner.has_value()) {
    return NothingFits(request, result);
  }
  const Searched& winner = result.candidates[*result.winner];
  PipelinePlan plan;
  plan.candidates.push_back(CandidateOf(winner, WhyItWon(result, winner)));
  std::vector<const Searched*> others;
  for (const Searched& candidate : result.candidates) {
    if (&candidate != &winner) {
      others.push_back(&candidate);
    }
  }
  std::ranges::stable_sort(others, {}, [](const Searched* candidate) {
    return std::pair(candidate->knowledge == Knowledge::kRefused, candidate->seconds);
  });
  for (const Searched* candidate : others) {
    plan.candidates.push_back(CandidateOf(*candidate, WhyItLost(*candidate, winner)));
  }
  return plan;
}

}  // namespace shoal::plan
