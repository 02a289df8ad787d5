// Checks servers' reports about their GPUs.
#pragma once

#include "absl/status/status.h"
#include "proto/server.pb.h"

namespace shoal::rpc {

// InvalidArgument for sizes that no GPU has. Sums of accepted sizes over all servers of a message
// cannot overflow.
absl::Status CheckServerGpu(const proto::ServerGpu& gpu);

}  // namespace shoal::rpc
