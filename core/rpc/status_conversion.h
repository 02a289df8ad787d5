// absl::Status <-> grpc::Status: the codes are the same, the message is kept (and capped, so that
// no error exceeds what gRPC carries in its trailers).
#pragma once

#include "absl/status/status.h"

namespace grpc {
class Status;
}

namespace shoal::rpc {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace shoal::rpc
