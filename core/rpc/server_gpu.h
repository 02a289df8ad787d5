// Checks what servers say of their GPUs.
#pragma once

#include "absl/status/status.h"
#include "proto/server.pb.h"

namespace shoal::rpc {

// InvalidArgument for what no GPU has. What passes adds up without overflow over all servers of a
// message.
absl::Status CheckServerGpu(const proto::ServerGpu& gpu);

}  // namespace shoal::rpc
