#include "cli/launcher/supervisor.h"

#include <sys/wait.h>

#include <vector>

#include "core/base/status.h"

namespace shoal::cli {
namespace {

constexpr size_t kRestarts = 3;  // of each process, within the period
constexpr absl::Duration kPeriod = absl::Minutes(10);

bool SaidWhy(const ChildEnd& end) { return WIFEXITED(end.wait_status) && !LeftInPeace(end); }

}  // namespace

Supervisor::Supervisor(LocalCluster& cluster, std::function<void(const std::string&)> tell,
                       Clock& clock)
    : cluster_(cluster), tell_(std::move(tell)), clock_(clock) {}

absl::Status Supervisor::Check(bool start_again) {
  if (!start_again) {
    return cluster_.Check();
  }
  const std::vector<ChildEnd> ends = cluster_.TakeEnds();
  for (const ChildEnd& end : ends) {
    SHOAL_RETURN_IF_ERROR(StartAgain(end));
  }
  return absl::OkStatus();
}

absl::Status Supervisor::StartAgain(const ChildEnd& end) {
  if (SaidWhy(end)) {
    return LocalCluster::Lost(end, Describe(end));
  }
  if (cluster_.IsSpare(end)) {
    tell_(Describe(end) + ": the job goes on with the servers that are there");
    return absl::OkStatus();
  }
  RestartBudget& budget = budgets_.try_emplace(end.name, kRestarts, kPeriod).first->second;
  const size_t restart = budget.Take(clock_.Now());
  if (restart == 0) {
    return LocalCluster::Lost(
        end, fmt::format("{}, after it was started again {} times in {}", Describe(end), kRestarts,
                         absl::FormatDuration(kPeriod)));
  }
  SHOAL_RETURN_IF_ERROR(Annotate(cluster_.StartAgain(end.name), Describe(end)));
  const char* from = " from its newest checkpoint, or without one from the model";
  if (LeftInPeace(end)) {
    from = "";
  } else if (end.name == LocalCluster::kCoordinator) {
    from = " where it is";
  }
  tell_(fmt::format("{}: started again ({} of {} in {}); the job goes on{}", Describe(end), restart,
                    kRestarts, absl::FormatDuration(kPeriod), from));
  return absl::OkStatus();
}

}  // namespace shoal::cli
