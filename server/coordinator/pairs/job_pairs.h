// The pairs of replies of a job, as the coordinator knows them: how many tokens of each reply are
// learnt, and what the model gave each before step 1. Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job.h"
#include "core/plan/step/pack_ledger.h"
#include "core/plan/step/step_plan.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

struct ReplyTargets {
  int64_t chosen = 0;
  int64_t rejected = 0;
};

// Pairs that go through the model together to get their references.
struct PairPart {
  bool of_validation = false;  // else of those that are trained on
  int64_t first = 0;
  int64_t count = 0;

  bool operator==(const PairPart&) const = default;
};

class JobPairs {
 public:
  // By sample, of what is trained and what is validated on.
  JobPairs(const plan::PreferenceOptions& options, std::vector<ReplyTargets> train,
           std::vector<ReplyTargets> validation);

  // Those that come next; nullopt: all have a reference, or the loss needs none.
  std::optional<PairPart> WithoutReference() const;
  // Log-probabilities of the replies, chosen and rejected one after the other, first of pairs that
  // are trained on; NaN where they are not known, which is behind all that are. None where the loss
  // has no reference, or each pack says its own.
  const std::vector<double>& references() const { return references_; }
  // Takes what was kept of them. FailedPrecondition if it is of more or fewer pairs.
  absl::Status SetReferences(std::vector<double> references);
  // Takes those of WithoutReference(), once all packs of `plan` are done. Internal where a pack did
  // not say them, or one is not finite.
  absl::Status TakeReferences(const plan::StepPlan& plan, const plan::PackLedger& ledger);
  // "512 of 6,000 pairs", of those with a reference.
  std::string Progress() const;

  // Adds what pairs are compared with, once all have a reference.
  void AddReferences(bool of_validation, proto::MicrobatchWork& work) const;
  // Of packs that are done, in their order: the same bits whoever ran them.
  proto::PreferenceMetrics Measure(const plan::StepPlan& plan, const plan::PackLedger& ledger,
                                   bool of_validation) const;

 private:
  size_t IndexOf(int64_t sample, bool of_validation) const {
    return static_cast<size_t>(sample) + (of_validation ? train_pairs_ : 0);
  }

  const plan::PreferenceOptions options_;
  const size_t train_pairs_;
  std::vector<ReplyTargets> targets_;  // of all pairs
  std::vector<double> references_;     // see references()
  size_t known_ = 0;                   // pairs with a reference
};

// Where the first step's loss is not that of a model which is its own reference, as pairs whose
// references are of another model or other data have it: a line that says so; else empty.
std::string UnlikeReference(const plan::Job& job, const proto::StepEvent& step);

// Says that what was made before step 1 is not at `file`.
std::string ReferencesGone(const std::string& file);

}  // namespace shoal::server
