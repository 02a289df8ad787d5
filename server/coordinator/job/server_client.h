// How the coordinator commands the servers of a job. Over gRPC in production
// (grpc_server_client.h), in process in tests.
// One for each job.
//
// All calls are asynchronous, so that all servers work at once: `done` runs exactly once, on any
// thread, but never within the call that was given it. An error that says Unavailable,
// DeadlineExceeded or Cancelled means that the server cannot be reached (after retries); any other
// is the server's own refusal. Calls in flight when this object is destroyed are cancelled, and
// none answers afterwards.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/server.pb.h"

namespace shoal::server {

template <typename Reply>
using Done = std::function<void(absl::StatusOr<Reply>)>;

class ServerClient {
 public:
  virtual ~ServerClient() = default;
  virtual void Configure(int server, const proto::ConfigureRequest& request,
                         Done<proto::ConfigureReply> done) = 0;
  virtual void BeginAttempt(int server, const proto::BeginAttemptRequest& request,
                            Done<proto::BeginAttemptReply> done) = 0;
  virtual void Prepare(int server, const proto::PrepareRequest& request,
                       Done<proto::PrepareReply> done) = 0;
  virtual void Commit(int server, const proto::CommitRequest& request,
                      Done<proto::CommitReply> done) = 0;
  virtual void WriteCheckpoint(int server, const proto::WriteCheckpointRequest& request,
                               Done<proto::WriteCheckpointReply> done) = 0;
  virtual void FenceClient(int server, const proto::FenceClientRequest& request,
                           Done<proto::FenceClientReply> done) = 0;
};

// For the servers of a job, by index.
using ServerControlFactory =
    std::function<std::shared_ptr<ServerClient>(const std::vector<std::string>& addresses)>;

}  // namespace shoal::server
