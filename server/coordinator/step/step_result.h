// Ends a step: computes the commit's numbers. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/shard_map.h"
#include "proto/server.pb.h"
#include "server/coordinator/step/expected_pushes.h"

namespace shoal::server {

struct StepTotals {
  double loss = 0;         // mean over the minibatch's targets, weighted
  double grad_norm = 0;    // before clipping
  int64_t non_finite = 0;  // gradient elements
};

// `loss_sum`: over all targets, which weigh `weight`. Sums squares in partition order, so that the
// order of arrival changes no bit. `prepared` are by server. Internal unless each partition that
// trains is reported once, whole, by its primary, and no other. Aborted, naming server, partition
// and both numbers, where a server counted other pushes than are expected.
absl::StatusOr<StepTotals> Total(double loss_sum, const std::vector<proto::PrepareReply>& prepared,
                                 const ExpectedPushes& expected, const plan::ShardMap& map,
                                 double weight);

// Names what is not finite, for a message ("the loss is nan"); otherwise empty.
std::string NonFinite(const StepTotals& totals);

// Returns min(1, clip_norm / (norm + 1e-6)); 1 if clip_norm is 0 (no clipping).
double ClipCoefficient(double clip_norm, double grad_norm);

}  // namespace shoal::server
