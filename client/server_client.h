// Asks servers for data connections: the seam between the client library and gRPC. Programs use
// client/grpc_server_client.h, tests call a server in their own process.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/server.pb.h"

namespace shoal::client {

class ServerClient {
 public:
  virtual ~ServerClient() = default;
  // Calls ParameterServer.Connect at server `server` (index of the shard map). Called from one
  // thread at a time; blocks for at most `timeout`.
  virtual absl::StatusOr<proto::ConnectReply> Connect(int server,
                                                      const proto::ConnectRequest& request,
                                                      absl::Duration timeout) = 0;
  // Ends the current call and all later ones with Cancelled. Thread-safe.
  virtual void Cancel() = 0;
};

}  // namespace shoal::client
