#include "server/coordinator/members/metrics_targets.h"

#include "core/base/net/address.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "server/coordinator/members/membership.h"

namespace shoal::server {

std::string MetricsTargets(const proto::GetStatusReply& status) {
  nlohmann::json targets = nlohmann::json::array();
  for (const proto::MemberStatus& member : status.members()) {
    if (member.metrics_port() == 0 || member.address().empty()) {
      continue;  // it serves none, or nobody knows where
    }
    const std::string host = HostOf(member.address());
    const std::string role = RoleName(member.role());
    targets.push_back(
        {{"targets", nlohmann::json::array({fmt::format("{}:{}", host, member.metrics_port())})},
         {"labels",
          {{"component", role}, {"instance", fmt::format("{}-{}", role, member.index())}}}});
  }
  return targets.dump();
}

}  // namespace shoal::server
