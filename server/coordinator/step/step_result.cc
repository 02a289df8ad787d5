#include "server/coordinator/step/step_result.h"

#include <algorithm>
#include <cmath>

#include "core/base/status.h"

namespace shoal::server {

absl::StatusOr<StepTotals> Total(double loss_sum, const std::vector<proto::PrepareReply>& prepared,
                                 const std::vector<plan::PartitionSpec>& partitions,
                                 const plan::ShardMap& map, double weight) {
  const size_t count = partitions.size();
  std::vector<const proto::PartitionGradient*> gradients(count, nullptr);
  for (size_t server = 0; server < prepared.size(); ++server) {
    for (const proto::PartitionGradient& gradient : prepared[server].partitions()) {
      const auto id = static_cast<size_t>(gradient.partition());
      if (gradient.partition() < 0 || id >= count || partitions[id].frozen ||
          gradients[id] != nullptr ||
          map.primary(gradient.partition()) != static_cast<int>(server)) {
        return Internal("server {} reports partition {}, which is not its own", server,
                        gradient.partition());
      }
      gradients[id] = &gradient;
    }
  }
  StepTotals totals;
  double sum_of_squares = 0;
  for (size_t id = 0; id < count; ++id) {
    if (partitions[id].frozen) {
      continue;
    }
    if (gradients[id] == nullptr) {
      return Internal("server {} did not report its partition {}",
                      map.primary(static_cast<int>(id)), id);
    }
    sum_of_squares += gradients[id]->sum_of_squares();
    totals.non_finite += gradients[id]->non_finite();
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
