// What servers say of their GPUs, as whoever is told it checks it.
#pragma once

#include "absl/status/status.h"
#include "proto/server.pb.h"

namespace shoal::rpc {

// InvalidArgument for what no GPU has. What passes adds up without overflow over all servers that a
// message has room for.
absl::Status CheckServerGpu(const proto::ServerGpu& gpu);

}  // namespace shoal::rpc
