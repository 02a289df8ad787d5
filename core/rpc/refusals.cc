#include "core/rpc/refusals.h"

#include <utility>

#include "core/base/status.h"

namespace shoal::rpc {

Refusals::Refusals(Metrics* metrics) {
  if (metrics == nullptr) {
    return;
  }
  for (const auto& [reason, name] :
       {std::pair(Reason::kToken, "token"), std::pair(Reason::kIdentity, "identity"),
        std::pair(Reason::kRole, "role")}) {
    counters_[reason] = &metrics->counter(kRefusedMetric, kRefusedHelp, {{"reason", name}});
  }
}

absl::Status Refusals::Refuse(Reason reason, const std::string& what, absl::Status why) {
  log_.Refused(Annotate(why, what));
  if (const auto counter = counters_.find(reason); counter != counters_.end()) {
    counter->second->Increment();
  }
  return why;
}

}  // namespace shoal::rpc
