#include "cli/launcher/restart_budget.h"

namespace shoal::cli {

size_t RestartBudget::Take(absl::Time now) {
  while (!taken_.empty() && now - taken_.front() >= period_) {
    taken_.pop_front();
  }
  if (taken_.size() >= restarts_) {
    return 0;
  }
  taken_.push_back(now);
  return taken_.size();
}

}  // namespace shoal::cli
