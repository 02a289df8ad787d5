// How the client library asks a server for a data connection: the seam between it and gRPC. A
// program uses the one of client/grpc_server_client.h, a test calls a server in its own process.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/server.pb.h"

namespace shoal::client {

class ServerClient {
 public:
  virtual ~ServerClient() = default;
  // ParameterServer.Connect at server `server` (index of the shard map). Called from one thread at
  // a time; blocks for at most `timeout`.
  virtual absl::StatusOr<proto::ConnectReply> Connect(int server,
                                                      const proto::ConnectRequest& request,
                                                      absl::Duration timeout) = 0;
  // That call, and all that come, end with Cancelled. From any thread.
  virtual void Cancel() = 0;
};

}  // namespace shoal::client
