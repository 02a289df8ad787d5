// Ends a step: checks workers' reports against the plan and the servers' counts, and computes the
// commit's numbers. Pure functions.
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

// A worker taking part in a step, for messages and for matching counts.
struct Participant {
  std::string name;  // NameOf
  uint64_t incarnation = 0;
};

// The work of one worker in a step.
struct GivenWork {
  int64_t microbatches = 0;  // including empty ones
  int64_t tokens = 0;
  int64_t targets = 0;

  void Add(const plan::Microbatch& microbatch);
};

// Checks that the report agrees with the worker's work and has a count for each server. Otherwise
// Aborted, naming worker and number.
absl::Status CheckReport(const proto::FinishedReport& report, const GivenWork& given, int servers,
                         const Participant& worker);

// Checks that each server counted from each worker exactly the pushes acknowledged to it, and none
// from others. Otherwise Aborted, naming server, worker and both numbers. `reports` are by worker,
// `prepared` by server.
absl::Status CheckPushes(const std::vector<proto::FinishedReport>& reports,
                         const std::vector<proto::PrepareReply>& prepared,
                         const std::vector<Participant>& workers);

struct StepTotals {
  double loss = 0;         // mean over the minibatch's target tokens
  double grad_norm = 0;    // before clipping
  int64_t non_finite = 0;  // gradient elements
};

// Sums in worker order and in partition order, so that the order of arrival changes no bit.
// Internal unless each partition is reported once, by its primary.
absl::StatusOr<StepTotals> Total(const std::vector<proto::FinishedReport>& reports,
                                 const std::vector<proto::PrepareReply>& prepared,
                                 const plan::ShardMap& map, int64_t targets);

// Names what is not finite, for a message ("the loss is nan"); otherwise empty.
std::string NonFinite(const StepTotals& totals);

// Returns min(1, clip_norm / (norm + 1e-6)); 1 if clip_norm is 0 (no clipping).
double ClipCoefficient(double clip_norm, double grad_norm);

}  // namespace shoal::server
