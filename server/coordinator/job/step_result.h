// The end of a step: checks workers' reports against the plan and the servers' counts, and makes
// the numbers of the commit. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/model/shard_map.h"
#include "core/plan/step/step_plan.h"
#include "proto/coordinator.pb.h"
#include "proto/server.pb.h"

namespace shoal::server {

// A worker that takes part in a step, for messages and for matching counts.
struct Participant {
  std::string name;  // NameOf
  uint64_t incarnation = 0;
};

// What a worker was given to run in a step.
struct GivenWork {
  int64_t microbatches = 0;  // empty ones count
  int64_t tokens = 0;
  int64_t targets = 0;

  void Add(const plan::Microbatch& microbatch);
};

// The report agrees with what this worker was given and has a count for each server. Aborted,
// naming worker and number, if not.
absl::Status CheckReport(const proto::FinishedReport& report, const GivenWork& given, int servers,
                         const Participant& worker);

// Each server counted from each worker exactly what that worker had acknowledged, and nothing from
// anyone else. Aborted, naming server, worker and both numbers, if not. `reports` are by worker,
// `prepared` by server.
absl::Status CheckPushes(const std::vector<proto::FinishedReport>& reports,
                         const std::vector<proto::PrepareReply>& prepared,
                         const std::vector<Participant>& workers);

struct StepTotals {
  double loss = 0;         // mean over the minibatch's target tokens
  double grad_norm = 0;    // before clipping
  int64_t non_finite = 0;  // gradient elements
};

// Sums in worker order and in partition order, so that the same reports give the same bits whoever
// came first. Each partition must be reported once, by its primary; Internal if not.
absl::StatusOr<StepTotals> Total(const std::vector<proto::FinishedReport>& reports,
                                 const std::vector<proto::PrepareReply>& prepared,
                                 const plan::ShardMap& map, int64_t targets);

// Empty, or what is not finite, for a message: "the loss is nan".
std::string NonFinite(const StepTotals& totals);

// min(1, clip_norm / (norm + 1e-6)); 1 where clip_norm is 0 (no clipping).
double ClipCoefficient(double clip_norm, double grad_norm);

}  // namespace shoal::server
