#include "server/coordinator/step/step_result.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/base/status.h"

namespace shoal::server {

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

absl::StatusOr<StepTotals> Total(double loss_sum, const std::vector<proto::PrepareReply>& prepared,
                                 const std::vector<plan::PartitionSpec>& partitions,
                                 const plan::ShardMap& map, double weight) {
  const size_t count = partitions.size();
  StepTotals totals;
  std::vector<std::optional<double>> squares(count);
  for (size_t server = 0; server < prepared.size(); ++server) {
    const proto::PrepareReply& reply = prepared[server];
    SHOAL_RETURN_IF_ERROR(CheckWhole(server, reply));
    for (int i = 0; i < reply.partitions_size(); ++i) {
      const int partition = reply.partitions(i);
      const auto id = static_cast<size_t>(partition);
      if (partition < 0 || id >= count || partitions[id].frozen || squares[id].has_value() ||
          map.primary(partition) != static_cast<int>(server)) {
        return Internal("server {} reports partition {}, which is not its own", server, partition);
      }
      squares[id] = reply.sums_of_squares(i);
      totals.non_finite += reply.non_finite(i);
    }
  }
  double sum_of_squares = 0;
  for (size_t id = 0; id < count; ++id) {
    if (partitions[id].frozen) {
      continue;
    }
    if (!squares[id].has_value()) {
      return Internal("server {} did not report its partition {}",
                      map.primary(static_cast<int>(id)), id);
    }
    sum_of_squares += *squares[id];
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
