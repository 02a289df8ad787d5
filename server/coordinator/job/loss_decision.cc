#include "server/coordinator/job/loss_decision.h"

#include "core/base/status.h"

namespace shoal::server {

LossDecision DecideOnLoss(const Member& lost, const std::string& why, const JobSnapshot& job) {
  const bool server = lost.role == proto::ROLE_SERVER;
  const bool needed = server && !job.asked;  // now
  const std::string who =
      fmt::format("{}{}{}", NameOf(lost), job.place.empty() ? "" : ", ", job.place);
  if (!job.takes_part || (job.ending && !needed)) {
    return {.what = LossDecision::What::kGoOn,
            .message = job.asked ? fmt::format("{} leaves when the job has ended: {}", who, why)
                                 : fmt::format("lost {}, which the job does not need: {}",
                                               NameOf(lost), why)};
  }
  const LossDecision::What now =
      job.replaced ? LossDecision::What::kGoOnWithout : LossDecision::What::kFail;
  const LossDecision::What later =
      server ? LossDecision::What::kSaveAndFail : LossDecision::What::kGoOnWithout;
  return {.what = needed ? now : later,
          .restarts = !server || job.restores,
          .message = job.asked ? fmt::format("{} is to leave: {}", who, why)
                               : fmt::format("lost {} in step {}: {}", who, job.step, why)};
}

}  // namespace shoal::server
