#include "server/coordinator/job/loss_decision.h"

#include "core/base/status.h"

namespace shoal::server {

LossDecision DecideOnLoss(const Member& lost, const std::string& why, const JobSnapshot& job) {
  const bool server = lost.role == proto::ROLE_SERVER;
  if (!job.takes_part || (job.ending && !server)) {
    return {.what = LossDecision::What::kGoOn,
            .message = fmt::format("lost {}, which the job does not need: {}", NameOf(lost), why)};
  }
  const LossDecision::What worker =
      job.alone ? LossDecision::What::kGoOnWithout : LossDecision::What::kSaveAndFail;
  return {.what = server ? LossDecision::What::kFail : worker,
          .message = fmt::format("lost {}{}{} in step {}: {}", NameOf(lost),
                                 job.place.empty() ? "" : ", ", job.place, job.step, why)};
}

}  // namespace shoal::server
