// Starts a lost process of a local cluster again, so that its job goes on (docs/service.md): each
// at most 3 times in 10 minutes. Lost is who was killed, or left with status 0 while the job goes
// on. Who ended with another status has said why, and would do so again: that ends the run.
//
// Used from the main thread only, as the cluster is.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "cli/launcher/launcher.h"
#include "cli/launcher/restart_budget.h"
#include "core/base/clock.h"

namespace shoal::cli {

class Supervisor {
 public:
  // `tell` hears of each process that is started again, in one line.
  Supervisor(LocalCluster& cluster, std::function<void(const std::string&)> tell,
             Clock& clock = RealClock());

  // OK while all run, or run again. Else Unavailable, as LocalCluster::Check says it; that is all
  // that it does unless it is to `start_again`.
  absl::Status Check(bool start_again);

 private:
  absl::Status StartAgain(const ChildEnd& end);

  LocalCluster& cluster_;
  const std::function<void(const std::string&)> tell_;
  Clock& clock_;
  std::map<std::string, RestartBudget> budgets_;  // by the process's name
};

}  // namespace shoal::cli
