// Decides how many servers a job takes, by those that are there and the memory that it needs of
// each. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/coordinator/members/membership.h"

namespace shoal::server {

// Bytes of the host that each of so many servers needs.
using ServerBytes = std::function<std::vector<int64_t>(int servers)>;

struct ServerDemand {
  int64_t servers = 0;  // 0: those that are there
  bool waits = false;   // for more
  ServerBytes bytes;    // empty: unknown
};

// Returns how many it takes: more than are there only where it waits. Else says with figures what
// is missing: FailedPrecondition of servers, ResourceExhausted of memory on a host of theirs.
absl::StatusOr<int64_t> DecideServers(std::span<const Member> there, const ServerDemand& demand);

}  // namespace shoal::server
