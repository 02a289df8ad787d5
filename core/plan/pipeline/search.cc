#include "core/plan/pipeline/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

#include "core/base/status.h"

namespace shoal::plan {
namespace {

// Of a longer step (chunks of all stages times microbatches) the first microbatches are simulated
// first: this many, or two for each stage.
constexpr int64_t kLongStep = 2048;
// Candidates of a long step whose estimate does not beat the best known by this much are skipped,
// and no candidate is simulated whole more often than this.
constexpr double kEstimateSlack = 0.02;
constexpr int kTries = 3;
// Examines all candidates if that is at most this much work (in actions), else stops when it is
// clear which is best.
constexpr int64_t kWork = 1'500'000;
// Tries offloads in steps of a quarter of a chunk; for steps no longer than this, if nothing seems
// to fit, tries all of them.
constexpr double kStep = 0.25;
constexpr int64_t kShortStep = 512;

class Search {
 public:
  Search(const PipelineRequest& request, std::vector<Variant> variants) : request_(request) {
    for (Variant& variant : variants) {
      result_.candidates.push_back(
          {.choice = std::move(variant.choice), .seconds = variant.least_seconds});
    }
  }

  absl::StatusOr<SearchResult> Run() {
    for (size_t i = 0; i < result_.candidates.size(); ++i) {
      queue_.emplace(result_.candidates[i].seconds, i);
    }
    while (!queue_.empty() && (!result_.winner.has_value() || work_ < kWork)) {
      const size_t place = queue_.top().second;
      queue_.pop();
      Searched& candidate = result_.candidates[place];
      if (candidate.knowledge == Knowledge::kSimulated) {
        // No other can take less.
        result_.winner = result_.winner.value_or(place);
        continue;
      }
      SHOAL_RETURN_IF_ERROR(LookCloser(candidate));
      if (candidate.knowledge != Knowledge::kRefused) {
        const bool against_estimates =
            candidate.knowledge == Knowledge::kSimulated &&
            FirstMicrobatches(candidate.choice) < request_.microbatches.size();
        queue_.emplace(candidate.seconds * (against_estimates ? 1 - kEstimateSlack : 1), place);
      }
    }
    return std::move(result_);
  }

 private:
  int64_t Size(const PipelineChoice& choice, size_t microbatches) const {
    return int64_t{choice.stages} * choice.chunks * static_cast<int64_t>(microbatches);
  }

  bool IsLong(const PipelineChoice& choice) const {
    return FirstMicrobatches(choice) < request_.microbatches.size();
  }

  // Returns how many microbatches a first look simulates.
  size_t FirstMicrobatches(const PipelineChoice& choice) const {
    const auto enough = static_cast<size_t>(
        std::max<int64_t>(2 * choice.stages, kLongStep / (choice.stages * choice.chunks)));
    return std::min(request_.microbatches.size(), enough);
  }

  absl::StatusOr<Evaluation> Evaluate(const PipelineChoice& choice, size_t microbatches) {
    work_ += 6 * Size(choice, microbatches);
    return Evaluation::Make(request_, choice, microbatches);
  }

  // Takes a first look at this much offloading. For a long step it assumes more memory than the
  // first microbatches took, by as much as whole simulations showed.
  absl::StatusOr<Measured> Look(const PipelineChoice& choice, const Evaluation& evaluation,
                                double chunks) {
    work_ += 6 * Size(choice, FirstMicrobatches(choice));
    if (!IsLong(choice)) {
      return evaluation.With(chunks, Evaluation::Fit::kReserved);
    }
    SHOAL_ASSIGN_OR_RETURN(Measured measured, evaluation.With(chunks, Evaluation::Fit::kPeaks));
    for (std::vector<int64_t>* bytes : {&measured.device_bytes, &measured.host_bytes}) {
      for (int64_t& of_stage : *bytes) {
        of_stage = static_cast<int64_t>(static_cast<double>(of_stage) * growth_);
      }
    }
    measured.excess = ExcessOf(request_.budgets, measured);
    return measured;
  }

  absl::Status LookCloser(Searched& candidate) {
    const PipelineChoice& choice = candidate.choice;
    if (candidate.knowledge == Knowledge::kFitting) {
      return Confirm(candidate);
    }
    SHOAL_ASSIGN_OR_RETURN(const Evaluation evaluation,
                           Evaluate(choice, FirstMicrobatches(choice)));
    candidate.copy_ratio = evaluation.copy_ratio();
    if (candidate.knowledge == Knowledge::kTimed) {
      return OffloadEnough(candidate, evaluation);
    }
    if (request_.offload.value != OffloadedChunks::kAuto) {
      SHOAL_ASSIGN_OR_RETURN(const Measured given, Look(choice, evaluation, GivenChunks(choice)));
      Note(candidate, given);
      return absl::OkStatus();
    }
    Note(candidate, evaluation.without_offload());
    if (!candidate.measured.excess.has_value()) {
      SHOAL_ASSIGN_OR_RETURN(const Measured measured, Look(choice, evaluation, 0));
      Note(candidate, measured);
    }
    if (candidate.measured.excess.has_value() && evaluation.affordable_chunks() > 0) {
      candidate.knowledge = Knowledge::kTimed;
    }
    return absl::OkStatus();
  }

  double GivenChunks(const PipelineChoice& choice) const {
    const double value = request_.offload.value;
    if (value == OffloadedChunks::kHalf) {
      return (choice.chunks + 1) / 2;
    }
    return value == OffloadedChunks::kFull ? choice.chunks : std::min<double>(value, choice.chunks);
  }

  // Records what a first look measured, and where that exceeds the budget.
  void Note(Searched& candidate, const Measured& measured) const {
    candidate.measured = measured;
    candidate.seconds = measured.seconds;
    candidate.choice.offloaded_chunks = measured.offloaded_chunks;
    candidate.knowledge = measured.excess.has_value() ? Knowledge::kRefused
                          : IsLong(candidate.choice)  ? Knowledge::kFitting
                                                      : Knowledge::kSimulated;
  }

  static bool OverDevice(const Measured& measured) {
    return measured.excess.has_value() && !measured.excess->host;
  }

  // Finds the least offloading with which the candidate fits.
  absl::Status OffloadEnough(Searched& candidate, const Evaluation& evaluation) {
    const PipelineChoice choice = candidate.choice;
    SHOAL_ASSIGN_OR_RETURN(Measured found,
                           Look(choice, evaluation, evaluation.affordable_chunks()));
    // Bisects between the largest number of steps that is too few and the smallest that is enough.
    double too_few = 0;
    for (double enough = found.offloaded_chunks; !OverDevice(found) && enough - too_few > kStep;) {
      const double chunks = too_few + std::floor((enough - too_few) / 2 / kStep) * kStep;
      SHOAL_ASSIGN_OR_RETURN(Measured measured, Look(choice, evaluation, chunks));
      if (OverDevice(measured)) {
        too_few = chunks;
      } else {
        enough = chunks;
        found = std::move(measured);
      }
    }
    // What is held need not fall with every step.
    if (Size(choice, request_.microbatches.size()) <= kShortStep && found.excess.has_value()) {
      for (double chunks = kStep; chunks <= choice.chunks; chunks += kStep) {
        SHOAL_ASSIGN_OR_RETURN(Measured measured, Look(choice, evaluation, chunks));
        if (!measured.excess.has_value()) {
          found = std::move(measured);
          break;
        }
      }
    }
    Note(candidate, found);
    return absl::OkStatus();
  }

  // Simulates a long step whole. If it does not fit, the first looks at it and at the others were
  // too optimistic, and it is examined again.
  absl::Status Confirm(Searched& candidate) {
    const Measured looked = candidate.measured;
    SHOAL_ASSIGN_OR_RETURN(const Evaluation evaluation,
                           Evaluate(candidate.choice, request_.microbatches.size()));
    const double chunks = candidate.choice.offloaded_chunks;
    work_ += 6 * Size(candidate.choice, request_.microbatches.size());
    SHOAL_ASSIGN_OR_RETURN(const Measured measured,
                           evaluation.With(chunks, Evaluation::Fit::kReserved));
    Note(candidate, measured);
    if (!candidate.measured.excess.has_value()) {
      candidate.knowledge = Knowledge::kSimulated;
      return absl::OkStatus();
    }
    if (const Excess& excess = *candidate.measured.excess; !excess.host) {
      const StageBudget& budget = request_.budgets[excess.stage];
      growth_ *= std::max(1.0, static_cast<double>(budget.device - budget.other + excess.bytes) /
                                   static_cast<double>(looked.device_bytes[excess.stage]));
    }
    if (request_.offload.value == OffloadedChunks::kAuto && ++candidate.tries < kTries &&
        chunks < evaluation.affordable_chunks()) {
      candidate.knowledge = Knowledge::kTimed;
    }
    return absl::OkStatus();
  }

  const PipelineRequest& request_;
  SearchResult result_;
  // Sorted by lower bound of the time, preferred ones first at equal bounds.
  std::priority_queue<std::pair<double, size_t>, std::vector<std::pair<double, size_t>>,
                      std::greater<>>
      queue_;
  int64_t work_ = 0;
  // Growth of memory from the first microbatches' peaks to what a whole long step reserves.
  double growth_ = 1;
};

}  // namespace

absl::StatusOr<SearchResult> SearchPipelines(const PipelineRequest& request,
                                             std::vector<Variant> variants) {
  return Search(request, std::move(variants)).Run();
}

}  // namespace shoal::plan
