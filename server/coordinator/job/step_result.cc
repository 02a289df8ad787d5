#include "server/coordinator/job/step_result.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/status.h"

namespace shoal::server {

void GivenWork::Add(const plan::Microbatch& microbatch) {
  ++microbatches;
  tokens += microbatch.tokens;
  targets += microbatch.targets;
}

absl::Status CheckReport(const proto::FinishedReport& report, const GivenWork& given, int servers,
                         const Participant& worker) {
  const auto check = [&](const char* what, int64_t reported, int64_t planned) {
    return reported == planned
               ? absl::OkStatus()
               : Aborted("{} reports {} {}, it was given {}", worker.name, reported, what, planned);
  };
  SHOAL_RETURN_IF_ERROR(check("microbatches", report.microbatches(), given.microbatches));
  SHOAL_RETURN_IF_ERROR(check("target tokens", report.target_tokens(), given.targets));
  SHOAL_RETURN_IF_ERROR(check("tokens", report.tokens(), given.tokens));
  if (report.pushes_size() != servers) {
    return Aborted("{} reports pushes to {} servers, there are {}", worker.name,
                   report.pushes_size(), servers);
  }
  return absl::OkStatus();
}

absl::Status CheckPushes(const std::vector<proto::FinishedReport>& reports,
                         const std::vector<proto::PrepareReply>& prepared,
                         const std::vector<Participant>& workers) {
  for (size_t server = 0; server < prepared.size(); ++server) {
    std::map<uint64_t, int64_t> counted;
    for (const proto::ClientPushes& client : prepared[server].clients()) {
      counted[client.incarnation()] += client.pushes();
    }
    for (size_t worker = 0; worker < workers.size(); ++worker) {
      const auto found = counted.find(workers[worker].incarnation);
      const int64_t taken = found == counted.end() ? 0 : found->second;
      const int64_t sent = reports[worker].pushes(static_cast<int>(server));
      if (taken != sent) {
        return Aborted("server {} took {} pushes of {}, which had {} acknowledged", server, taken,
                       workers[worker].name, sent);
      }
      counted.erase(workers[worker].incarnation);
    }
    for (const auto& [incarnation, pushes] : counted) {
      if (pushes != 0) {
        return Aborted(
            "server {} took {} pushes of incarnation {:016x}, which takes no part in this step",
            server, pushes, incarnation);
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StepTotals> Total(const std::vector<proto::FinishedReport>& reports,
                                 const std::vector<proto::PrepareReply>& prepared,
                                 const plan::ShardMap& map, int64_t targets) {
  const size_t count = map.servers.size();
  std::vector<const proto::PartitionGradient*> gradients(count, nullptr);
  for (size_t server = 0; server < prepared.size(); ++server) {
    for (const proto::PartitionGradient& gradient : prepared[server].partitions()) {
      const auto id = static_cast<size_t>(gradient.partition());
      if (gradient.partition() < 0 || id >= count || gradients[id] != nullptr ||
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
    if (gradients[id] == nullptr) {
      return Internal("server {} did not report its partition {}",
                      map.primary(static_cast<int>(id)), id);
    }
    sum_of_squares += gradients[id]->sum_of_squares();
    totals.non_finite += gradients[id]->non_finite();
  }
  totals.grad_norm = std::sqrt(sum_of_squares);
  double loss_sum = 0;
  for (const proto::FinishedReport& report : reports) {
    loss_sum += report.loss_sum();
  }
  totals.loss = targets > 0 ? loss_sum / static_cast<double>(targets) : 0;
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
