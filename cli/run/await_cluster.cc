#include "cli/run/await_cluster.h"

#include <algorithm>

#include "cli/terminal/terminal.h"
#include "core/base/status.h"
#include "core/rpc/coordinator_service.h"

namespace shoal::cli {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Milliseconds(10);

absl::StatusOr<int64_t> RegisteredServers(rpc::Channel& coordinator, const rpc::CallOptions& call) {
  SHOAL_ASSIGN_OR_RETURN(const proto::GetStatusReply status,
                         coordinator.Call(&rpc::CoordinatorService::GetStatus, {}, call));
  return std::count_if(
      status.members().begin(), status.members().end(),
      [](const proto::MemberStatus& member) { return member.role() == proto::ROLE_SERVER; });
}

}  // namespace

absl::Status AwaitCluster(rpc::Channel& coordinator, int64_t servers, absl::Duration limit,
                          const std::function<void(const std::string&)>& tell,
                          const std::function<absl::Status()>& check, Clock& clock) {
  const absl::Time deadline = clock.Now() + limit;
  while (true) {
    absl::Status checked;
    int64_t there = 0;
    const absl::Status answer = rpc::CallPatiently(
        limit,
        [&](const rpc::CallOptions& call) -> absl::Status {
          SHOAL_ASSIGN_OR_RETURN(there, RegisteredServers(coordinator, call));
          return absl::OkStatus();
        },
        [&tell](const absl::Status& failure, absl::Duration left) {
          tell(fmt::format("{}; trying for {} more", Message(failure),
                           FormatSeconds(absl::ToDoubleSeconds(left))));
        },
        [&] {
          checked.Update(check());
          return !checked.ok();
        });
    SHOAL_RETURN_IF_ERROR(checked);
    SHOAL_RETURN_IF_ERROR(answer);
    if (there >= servers) {
      return absl::OkStatus();
    }
    SHOAL_RETURN_IF_ERROR(check());
    if (clock.Now() >= deadline) {
      return DeadlineExceeded(
          "{} of {} servers came within {} (cluster.start_timeout_seconds): look at their logs for "
          "why the others did not",
          there, servers, absl::FormatDuration(limit));
    }
    clock.SleepFor(kBetweenLooks);
  }
}

}  // namespace shoal::cli
