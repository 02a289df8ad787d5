#include "server/coordinator/job/loss_decision.h"

#include "core/base/status.h"

namespace shoal::server {

LossDecision DecideOnLoss(const Member& lost, const std::string& why, const JobSnapshot& job) {
  if (!job.takes_part) {
    return {
        .fail = false,
        .message = fmt::format("lost {}, which takes no part in the job: {}", NameOf(lost), why)};
  }
  const std::string remedy =
      job.checkpoint_step >= 0
          ? fmt::format("go on from the checkpoint of step {} with --resume", job.checkpoint_step)
          : "there is no checkpoint yet, start the job again";
  return {.fail = true,
          .message = fmt::format("lost {}{}{} in step {}: {}; {}", NameOf(lost),
                                 job.place.empty() ? "" : ", ", job.place, job.step, why, remedy)};
}

}  // namespace shoal::server
