// Keeps the books of a step's packs over one attempt: each waits, is in a worker group's hands, or
// is done, with its result. A state machine without I/O; the coordinator owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/step/step_plan.h"

namespace shoal::plan {

// What a stage says of a pack that it has run.
struct PackResult {
  int64_t number = 0;
  double loss_sum = 0;  // over its targets; 0 of stages without the model's head
  int64_t tokens = 0;
  int64_t targets = 0;
  // Of pairs, of their replies: two of each sample; nothing of stages without the head.
  std::vector<double> log_probabilities = {};
  // What the model without its adapters gives them, where that is asked; likewise.
  std::vector<double> references = {};
};

class PackLedger {
 public:
  // All packs wait. Each must be run by all `stages` of one group.
  PackLedger(const StepPlan& plan, size_t stages);

  // A pack that waits goes into the group's hands, or is there already.
  void Give(int64_t number, int group);
  // A stage has run a pack and all that it pushed is acknowledged. Aborted, saying why, if the pack
  // is not in the group's hands or the result contradicts the plan; said again, it counts once.
  absl::Status Done(int group, size_t stage, const PackResult& result);
  // The group is gone: what is in its hands waits again. Returns that, ascending.
  std::vector<int64_t> TakeBack(int group);

  // How many packs in the group's hands this stage has still to run.
  int64_t Left(int group, size_t stage) const;
  // How many packs this stage of the group has run, including those done.
  int64_t Ran(int group, size_t stage) const;
  int64_t packs() const { return std::ssize(packs_); }  // including empty ones
  bool done() const { return undone_ == 0; }
  // Over all packs, in their order: the same bits whoever ran them.
  double LossSum() const;
  const std::vector<double>& LogProbabilities(int64_t number) const {
    return packs_[static_cast<size_t>(number)].log_probabilities;
  }
  const std::vector<double>& References(int64_t number) const {
    return packs_[static_cast<size_t>(number)].references;
  }

 private:
  struct Pack {
    int64_t tokens = 0;  // as planned
    int64_t targets = 0;
    size_t samples = 0;
    int group = -1;  // that has it, or has run it; -1: it waits
    double loss_sum = 0;
    std::vector<double> log_probabilities;
    std::vector<double> references;
    std::vector<bool> stages;  // that have run it
    size_t missing = 0;        // stages that have not
  };
  // The packs that it has or has run.
  struct Group {
    int64_t packs = 0;
    std::vector<int64_t> ran;  // by stage
  };

  Group& of(int group);
  const Group* Find(int group) const;

  const size_t stages_;
  std::vector<Pack> packs_;  // by number
  std::vector<Group> groups_;
  int64_t undone_ = 0;
};

}  // namespace shoal::plan
