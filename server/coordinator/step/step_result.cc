#include "server/coordinator/step/step_result.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/base/status.h"
#include "core/base/testing/planted.h"

namespace shoal::server {
namespace {

// Internal unless the server's answer says all of each of its partitions.
absl::Status CheckWhole(size_t server, const proto::PrepareReply& prepared) {
  const int count = prepared.partitions_size();
  if (prepared.sums_of_squares_size() != count || prepared.non_finite_size() != count ||
      prepared.pushes_size() != count) {
    return Internal(
        "server {} reports {} partitions, {} sums, {} counts of elements and {} of "
        "pushes",
        server, count, prepared.sums_of_squares_size(), prepared.non_finite_size(),
        prepared.pushes_size());
  }
  return absl::OkStatus();
}

// What is reported of a partition.
struct Reported {
  int server = -1;  // none
  int64_t pushes = 0;
  double sum_of_squares = 0;
};

absl::Status NotItsOwn(int server, int partition) {
  return Internal("server {} reports partition {}, which is not its own", server, partition);
}

// By partition. Answers one after the other, as they lie in memory.
absl::StatusOr<std::vector<Reported>> ByPartition(const std::vector<proto::PrepareReply>& prepared,
                                                  size_t partitions) {
  std::vector<Reported> all(partitions);
  for (size_t server = 0; server < prepared.size(); ++server) {
    const proto::PrepareReply& reply = prepared[server];
    SHOAL_RETURN_IF_ERROR(CheckWhole(server, reply));
    for (int i = 0; i < reply.partitions_size(); ++i) {
      const int id = reply.partitions(i);
      if (id < 0 || static_cast<size_t>(id) >= partitions ||
          all[static_cast<size_t>(id)].server >= 0) {
        return NotItsOwn(static_cast<int>(server), id);
      }
      all[static_cast<size_t>(id)] = {.server = static_cast<int>(server),
                                      .pushes = reply.pushes(i),
                                      .sum_of_squares = reply.sums_of_squares(i)};
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<StepTotals> Total(double loss_sum, const std::vector<proto::PrepareReply>& prepared,
                                 const ExpectedPushes& expected, const plan::ShardMap& map,
                                 double weight) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Reported> all,
                         ByPartition(prepared, expected.partitions().size()));
  double sum_of_squares = 0;
  for (const plan::PartitionSpec& partition : expected.partitions()) {
    const Reported& reported = all[static_cast<size_t>(partition.id)];
    const int primary = map.primary(partition.id);
    if (reported.server < 0 && partition.frozen) {
      continue;
    }
    if (reported.server < 0) {
      return Internal("server {} did not report its partition {}", primary, partition.id);
    }
    if (reported.server != primary || partition.frozen) {
      return NotItsOwn(reported.server, partition.id);
    }
    const int64_t pushes = expected.Of(partition);
    if (reported.pushes != pushes && !SHOAL_PLANTED("pushes-unchecked")) {
      return Aborted("server {} took {} pushes of partition {}, and the step's packs make {}",
                     primary, reported.pushes, partition.id, pushes);
    }
    sum_of_squares += reported.sum_of_squares;
  }
  StepTotals totals;
  for (const proto::PrepareReply& reply : prepared) {
    totals.non_finite =
        std::accumulate(reply.non_finite().begin(), reply.non_finite().end(), totals.non_finite);
  }
  totals.grad_norm = std::sqrt(sum_of_squares);
  totals.loss = weight > 0 ? loss_sum / weight : 0;
  return totals;
}

std::string NonFinite(const StepTotals& totals) {
  if (!std::isfinite(totals.loss)) {
    return fmt::format("the loss is {}", totals.loss);
  }
  if (totals.non_finite > 0) {
    return fmt::format("{} gradient elements are not finite", totals.non_finite);
  }
  if (!std::isfinite(totals.grad_norm)) {
    return fmt::format("the gradient norm is {}", totals.grad_norm);
  }
  return "";
}

double ClipCoefficient(double clip_norm, double grad_norm) {
  constexpr double kEpsilon = 1e-6;  // as in torch.nn.utils.clip_grad_norm_
  return clip_norm > 0 ? std::min(1.0, clip_norm / (grad_norm + kEpsilon)) : 1.0;
}

}  // namespace shoal::server
