// Finds the fastest schedule of a pipeline that fits into memory: builds candidates and simulates
// them with measured or given costs, refuses those over a budget, and says of each why it won or
// lost. Pure and deterministic, no clock. `shoal plan` prints the result and a job with `schedule:
// auto` runs it.
//
// - Candidates are schedules (core/plan/schedule/builders) times numbers of chunks times what is
//   recomputed. Each takes the least offloading with which it fits, which costs nothing if the
//   copies have time.
// - A candidate is examined more closely only while it could still be the best: first by its
//   compute only, then without offloads, then with them.
// - Long steps (many stages, chunks and microbatches) are first compared over their first
//   microbatches; only the promising ones are simulated whole. 32 stages of 8 chunks with 256
//   microbatches take about a second.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/job/pipeline_options.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "core/plan/pipeline/chosen_schedule.h"
#include "core/plan/pipeline/pace_costs.h"

namespace shoal::plan {

// Memory of one stage. 0: unknown, everything fits.
struct StageBudget {
  int64_t device = 0;
  int64_t host = 0;   // for what is offloaded
  int64_t other = 0;  // of the device: what it needs besides a step's activations and messages
};

struct PipelineRequest {
  ModelSpec spec;
  DType compute = DType::kF32;
  int stages = 1;
  int chunks = 0;  // of each stage; 0: tries those that suit
  // Of a typical step of one pipeline; a step that needs more than this one may not fit.
  std::vector<MicrobatchSize> microbatches;
  PipelinePace pace;
  std::vector<StageBudget> budgets;        // by stage; empty: everything fits
  std::optional<ScheduleChoice> schedule;  // none: the planner chooses
  OffloadedChunks offload;
  std::optional<Recompute> recompute;  // none: the planner chooses
};

struct PipelineCandidate {
  PipelineChoice choice;
  double step_seconds = 0;
  double bubble_share = 0;
  double copy_ratio = 0;  // k, of the stage with the most to copy
  // By stage: peaks of activations and their gradients, and of what is offloaded. A candidate that
  // fits does so including the holes between pieces of unequal sizes.
  std::vector<int64_t> device_bytes;
  std::vector<int64_t> host_bytes;
  bool fits = false;
  // Over the whole step. If false, less is known: the step's time is an estimate, and bytes are
  // those of the first microbatches, or there are none.
  bool simulated = false;
  std::string verdict;  // one sentence
};

struct PipelinePlan {
  // The chosen one, then the others by time: first those that may fit, then those that do not.
  std::vector<PipelineCandidate> candidates;

  const PipelineCandidate& chosen() const { return candidates.front(); }
};

// InvalidArgument for an impossible request (more virtual stages than units, a schedule that does
// not support this many chunks). ResourceExhausted if nothing fits: says which needs least, on
// which stage, and what to change.
absl::StatusOr<PipelinePlan> PlanPipeline(const PipelineRequest& request);

}  // namespace shoal::plan
