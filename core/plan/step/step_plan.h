// The plan of one step: which samples go through the model together (microbatches, packed under a
// token limit) and which worker group runs them. A pure function from lengths to a plan:
// deterministic, the same on every machine. core/job/assignment.h lists the ways to do it,
// core/plan/step/prediction.h predicts what a plan will take.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job/job.h"
#include "core/plan/step/cost_model.h"

namespace shoal::plan {

struct SampleLength {
  int64_t sample = 0;  // id in the dataset
  int64_t tokens = 0;
  int64_t targets = 0;
  double weight = 0;         // of its targets; 1 each unless the data says so
  int64_t first_tokens = 0;  // of a pair, its first sequence; 0: it is one sequence
};

struct Microbatch {
  std::vector<int64_t> samples;  // ids, in the order in which they are packed
  int64_t tokens = 0;
  int64_t targets = 0;
  double squared_tokens = 0;  // sum over the samples
  double cost = 0;            // by the cost model of the plan
  int64_t number = 0;  // in the step: 0, 1, ... in the order of packing; empty ones come last

  bool empty() const { return samples.empty(); }
  bool operator==(const Microbatch&) const = default;
};

struct StepPlan {
  std::vector<std::vector<Microbatch>> workers;  // by worker group; a group may have none
  int64_t tokens = 0;
  int64_t targets = 0;
  double weight = 0;  // of the targets of the whole minibatch: loss scale is 1 / weight

  int64_t packs() const;                         // including empty ones
  const Microbatch* Find(int64_t number) const;  // null: there is none

  bool operator==(const StepPlan&) const = default;
};

struct StepPlanOptions {
  int workers = 1;
  // Above 0: packs are made as for this many alike workers, whatever `workers` and `speeds` are,
  // and then given out whole. 0: packs are made for these workers and their speeds, which balances
  // better.
  int pack_groups = 0;
  int64_t microbatch_tokens = 4096;
  Assignment assignment = Assignment::kAuto;  // kAuto: lb-micro with equal_counts, else lb-mini
  std::vector<double> speeds;                 // by worker, positive; empty: all 1
  // Set if workers wait for each other at every layer: those with fewer microbatches get empty ones
  // at the end.
  bool equal_counts = false;
};

// Returns the number of worker groups for which a job's samples are packed, if there are `groups`
// when it is submitted. In exact mode the result must not depend on them.
int64_t PackGroups(const Job& job, int64_t groups);

// Returns how a job plans its steps for worker groups of these speeds (empty: unknown or alike).
StepPlanOptions StepPlanOptionsOf(const Job& job, int64_t groups, std::vector<double> speeds = {});

// The same for a validation: packs, and the order of their numbers, are the same for any workers,
// but for empty ones.
StepPlanOptions ValidationPlanOptionsOf(const Job& job, int64_t groups,
                                        std::vector<double> speeds = {});

// Puts each sample into exactly one microbatch (a sample that is listed twice, into two), none
// longer than the limit. InvalidArgument names a sample longer than microbatch_tokens, and speeds
// that are not positive or not one for each worker.
absl::StatusOr<StepPlan> PlanStep(std::span<const SampleLength> samples,
                                  const StepPlanOptions& options, const CostModel& cost);

}  // namespace shoal::plan
