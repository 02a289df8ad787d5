#include "core/plan/step/pack_ledger.h"

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"

namespace shoal::plan {

PackLedger::PackLedger(const StepPlan& plan, size_t stages)
    : stages_(stages), packs_(static_cast<size_t>(plan.packs())), undone_(plan.packs()) {
  for (const std::vector<Microbatch>& microbatches : plan.workers) {
    for (const Microbatch& microbatch : microbatches) {
      Pack& pack = packs_[static_cast<size_t>(microbatch.number)];
      SHOAL_CHECK(pack.stages.empty());  // each number once
      pack = {.tokens = microbatch.tokens,
              .targets = microbatch.targets,
              .samples = microbatch.samples.size(),
              .stages = std::vector<bool>(stages, false),
              .missing = stages};
    }
  }
}

PackLedger::Group& PackLedger::of(int group) {
  const auto index = static_cast<size_t>(group);
  if (index >= groups_.size()) {
    groups_.resize(index + 1, {.ran = std::vector<int64_t>(stages_, 0)});
  }
  return groups_[index];
}

const PackLedger::Group* PackLedger::Find(int group) const {
  const auto index = static_cast<size_t>(group);
  return index < groups_.size() ? &groups_[index] : nullptr;
}

void PackLedger::Give(int64_t number, int group) {
  Pack& pack = packs_[static_cast<size_t>(number)];
  if (pack.group == group) {
    return;
  }
  SHOAL_CHECK(pack.group == -1);
  pack.group = group;
  ++of(group).packs;
}

absl::Status PackLedger::Done(int group, size_t stage, const PackResult& result) {
  SHOAL_CHECK(stage < stages_);
  if (result.number < 0 || result.number >= std::ssize(packs_) ||
      packs_[static_cast<size_t>(result.number)].group != group) {
    return Aborted("it reports pack {}, which it was not given", result.number);
  }
  Pack& pack = packs_[static_cast<size_t>(result.number)];
  if (result.targets != pack.targets || result.tokens != pack.tokens) {
    return Aborted("it reports {} tokens and {} targets of pack {}, which has {} and {}",
                   result.tokens, result.targets, result.number, pack.tokens, pack.targets);
  }
  for (const std::vector<double>* of_pairs : {&result.log_probabilities, &result.references}) {
    if (!of_pairs->empty() && of_pairs->size() != 2 * pack.samples) {
      return Aborted("it reports {} log-probabilities of pack {}, which has {} samples",
                     of_pairs->size(), result.number, pack.samples);
    }
  }
  if (pack.stages[stage]) {
    pack.loss_sum += SHOAL_PLANTED("loss-twice") ? result.loss_sum : 0;
    return absl::OkStatus();
  }
  pack.stages[stage] = true;
  pack.loss_sum += result.loss_sum;
  if (!result.log_probabilities.empty()) {
    pack.log_probabilities = result.log_probabilities;
    pack.references = result.references;
  }
  ++of(group).ran[stage];
  undone_ -= --pack.missing == 0 ? 1 : 0;
  return absl::OkStatus();
}

std::vector<int64_t> PackLedger::TakeBack(int group) {
  std::vector<int64_t> waiting;
  for (size_t number = 0; number < packs_.size(); ++number) {
    Pack& pack = packs_[number];
    if (pack.group == group && pack.missing > 0) {
      --of(group).packs;
      for (size_t stage = 0; stage < stages_; ++stage) {
        of(group).ran[stage] -= pack.stages[stage] ? 1 : 0;
      }
      pack.group = -1;
      pack.loss_sum = 0;
      pack.log_probabilities.clear();
      pack.references.clear();
      pack.stages.assign(stages_, false);
      pack.missing = stages_;
      waiting.push_back(static_cast<int64_t>(number));
    }
  }
  if (SHOAL_PLANTED("pack-forgotten") && waiting.size() > 1) {
    waiting.pop_back();
  }
  return waiting;
}

int64_t PackLedger::Left(int group, size_t stage) const {
  const Group* found = Find(group);
  return found == nullptr ? 0 : found->packs - found->ran[stage];
}

int64_t PackLedger::Ran(int group, size_t stage) const {
  const Group* found = Find(group);
  return found == nullptr ? 0 : found->ran[stage];
}

double PackLedger::LossSum() const {
  double sum = 0;
  for (const Pack& pack : packs_) {
    sum += pack.loss_sum;
  }
  return sum;
}

}  // namespace shoal::plan
