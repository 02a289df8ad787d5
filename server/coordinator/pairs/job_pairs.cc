#include "server/coordinator/pairs/job_pairs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "core/base/status.h"

namespace shoal::server {
namespace {

// Few enough that little is lost with a part, and that what is kept is written seldom.
constexpr size_t kLeastPart = 1024;
constexpr size_t kMostParts = 64;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// By number.
std::vector<const plan::Microbatch*> PacksOf(const plan::StepPlan& plan) {
  std::vector<const plan::Microbatch*> packs(static_cast<size_t>(plan.packs()));
  for (const std::vector<plan::Microbatch>& group : plan.workers) {
    for (const plan::Microbatch& pack : group) {
      packs[static_cast<size_t>(pack.number)] = &pack;
    }
  }
  return packs;
}

// What a pack said of a pair, of the chosen reply and the rejected.
struct SaidOfPair {
  int64_t sample = 0;
  double of[2] = {};
  double references[2] = {};  // 0 where it said none
};

// Calls `visit` with each pair of packs that said something of them.
void VisitPairs(const plan::StepPlan& plan, const plan::PackLedger& ledger, const auto& visit) {
  for (const plan::Microbatch* pack : PacksOf(plan)) {
    const std::vector<double>& said = ledger.LogProbabilities(pack->number);
    const std::vector<double>& references = ledger.References(pack->number);
    for (size_t i = 0; 2 * i < said.size(); ++i) {
      SaidOfPair pair = {pack->samples[i], {said[2 * i], said[2 * i + 1]}};
      if (!references.empty()) {
        std::copy_n(references.begin() + static_cast<ptrdiff_t>(2 * i), 2, pair.references);
      }
      visit(pair);
    }
  }
}

}  // namespace

JobPairs::JobPairs(const plan::PreferenceOptions& options, std::vector<ReplyTargets> train,
                   std::vector<ReplyTargets> validation)
    : options_(options), train_pairs_(train.size()), targets_(std::move(train)) {
  targets_.insert(targets_.end(), validation.begin(), validation.end());
  if (options.precomputes()) {
    references_.assign(2 * targets_.size(), kUnknown);
  }
}

std::optional<PairPart> JobPairs::WithoutReference() const {
  if (2 * known_ >= references_.size()) {
    return std::nullopt;
  }
  const size_t all = references_.size() / 2;
  const bool of_validation = known_ >= train_pairs_;
  const size_t end = of_validation ? all : train_pairs_;
  const size_t most = std::max(kLeastPart, (all + kMostParts - 1) / kMostParts);
  return PairPart{.of_validation = of_validation,
                  .first = static_cast<int64_t>(known_ - (of_validation ? train_pairs_ : 0)),
                  .count = static_cast<int64_t>(std::min(most, end - known_))};
}

absl::Status JobPairs::SetReferences(std::vector<double> references) {
  if (references.size() != references_.size()) {
    return FailedPrecondition("there are references of {} replies, not of {}", references.size(),
                              references_.size());
  }
  references_ = std::move(references);
  const auto unknown =
      std::ranges::find_if(references_, [](double value) { return !std::isfinite(value); });
  known_ = static_cast<size_t>(unknown - references_.begin()) / 2;
  std::fill(references_.begin() + static_cast<ptrdiff_t>(2 * known_), references_.end(), kUnknown);
  return absl::OkStatus();
}

absl::Status JobPairs::TakeReferences(const plan::StepPlan& plan, const plan::PackLedger& ledger) {
  const std::optional<PairPart> part = WithoutReference();
  if (!part.has_value()) {
    return absl::OkStatus();
  }
  VisitPairs(plan, ledger, [&](const SaidOfPair& pair) {
    std::copy_n(pair.of, 2, &references_[2 * IndexOf(pair.sample, part->of_validation)]);
  });
  for (int64_t i = 0; i < part->count; ++i) {
    const size_t index = IndexOf(part->first + i, part->of_validation);
    if (!std::isfinite(references_[2 * index]) || !std::isfinite(references_[2 * index + 1])) {
      return Internal("the model gives pair {}{} the log-probabilities {} and {}", part->first + i,
                      part->of_validation ? " of the validation" : "", references_[2 * index],
                      references_[2 * index + 1]);
    }
  }
  known_ += static_cast<size_t>(part->count);
  return absl::OkStatus();
}

std::string JobPairs::Progress() const {
  return fmt::format("{} of {} pairs", known_, targets_.size());
}

void JobPairs::AddReferences(bool of_validation, proto::MicrobatchWork& work) const {
  if (references_.empty() || WithoutReference().has_value()) {
    return;
  }
  for (const int64_t sample : work.samples()) {
    const size_t index = IndexOf(sample, of_validation);
    work.add_references(references_[2 * index]);
    work.add_references(references_[2 * index + 1]);
  }
}

proto::PreferenceMetrics JobPairs::Measure(const plan::StepPlan& plan,
                                           const plan::PackLedger& ledger,
                                           bool of_validation) const {
  double pairs = 0;
  double right = 0;
  double sums[2] = {};
  double rewards[2] = {};
  VisitPairs(plan, ledger, [&](const SaidOfPair& pair) {
    const size_t index = IndexOf(pair.sample, of_validation);
    const int64_t targets[2] = {targets_[index].chosen, targets_[index].rejected};
    double reward[2] = {};
    for (const size_t reply : {0, 1}) {
      const double reference =
          references_.empty() ? pair.references[reply] : references_[2 * index + reply];
      reward[reply] = options_.beta * (options_.has_reference()
                                           ? pair.of[reply] - reference
                                           : pair.of[reply] / static_cast<double>(targets[reply]));
      sums[reply] += pair.of[reply];
      rewards[reply] += reward[reply];
    }
    pairs += 1;
    right += reward[0] > reward[1] ? 1 : 0;
  });
  proto::PreferenceMetrics means;
  if (pairs > 0) {
    means.set_chosen_reward(rewards[0] / pairs);
    means.set_rejected_reward(rewards[1] / pairs);
    means.set_accuracy(right / pairs);
    means.set_chosen_log_probability(sums[0] / pairs);
    means.set_rejected_log_probability(sums[1] / pairs);
  }
  return means;
}

std::string ReferencesGone(const std::string& file) {
  return fmt::format(
      "the references of the pairs, made before step 1, are gone: {} is not there, or not whole; "
      "give it back, and data.train and data.validation as they were, or begin again with "
      "--overwrite",
      file);
}

std::string UnlikeReference(const plan::Job& job, const proto::StepEvent& step) {
  const plan::PreferenceOptions& options = job.preference;
  if (job.train.objective != plan::Objective::kDpo || step.step() != 1 ||
      options.loss != plan::PreferenceLoss::kSigmoid || options.sft_weight != 0) {
    return "";
  }
  const double tolerance = plan::ComputeDType(job) == DType::kF32 ? 1e-4 : 0.02;
  return std::abs(step.loss() - std::numbers::ln2) <= tolerance
             ? ""
             : fmt::format(
                   "the loss of step 1 is {:.6f}, and ln 2 = 0.693147 for a model that is its own "
                   "reference: are the workers alike, and the references of this model?",
                   step.loss());
}

}  // namespace shoal::server
