// Shared by channels and servers: limits, logs, errors and names of methods.
#pragma once

#include <grpc/support/time.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/descriptor.h"

namespace grpc {
class Status;
}

namespace shoal::rpc {

// Both ends of a connection must agree on these. Control messages are small; the largest is the
// work of a step with many thousand samples.
inline constexpr int kMaxMessageBytes = 64 << 20;
inline constexpr int kKeepAliveTimeMs = 5000;
inline constexpr int kKeepAliveTimeoutMs = 5000;
// A caller closes a connection without a call for this long; the next call makes a new one.
inline constexpr int kIdleTimeoutMs = 60'000;

// Sends gRPC's own messages to our log at debug level instead of stderr: errors are returned as
// statuses too. Keeps gRPC alive until the process ends: else who drops its last channel or server
// waits for gRPC's threads, one of which looks after full sockets for ten seconds at a time.
// Idempotent.
void StartGrpc();

// Keeps the code, the message, which ToGrpc cuts to fit gRPC's trailers, and what StandsBy says.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Returns the deadline that `limit` from now is, on gRPC's steady clock.
gpr_timespec SteadyDeadline(absl::Duration limit);

// Returns the rpc that takes such requests: each rpc has its own request type. CHECKs that it
// exists.
const google::protobuf::MethodDescriptor& MethodTaking(const google::protobuf::Descriptor& request);

// "/shoal.proto.Coordinator/Leave"
std::string MethodPath(const google::protobuf::MethodDescriptor& method);

}  // namespace shoal::rpc
