// Calls to one parameter server, with deadline, token and errors that name it. Thread-safe.
//
// The blocking calls are for clients and tools; the others are for the coordinator, which calls all
// servers at once: `done` runs exactly once, on a thread of gRPC's, never within the call that was
// given it, and must not block.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "core/rpc/channel.h"
#include "proto/server.pb.h"

namespace shoal::rpc {

template <typename Reply>
using Done = std::function<void(absl::StatusOr<Reply>)>;

class ParameterServerClient {
 public:
  explicit ParameterServerClient(std::shared_ptr<Channel> channel);
  ~ParameterServerClient();

  absl::StatusOr<proto::ConfigureReply> Configure(const proto::ConfigureRequest& request,
                                                  const CallOptions& options = {});
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(const proto::BeginAttemptRequest& request,
                                                        const CallOptions& options = {});
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request,
                                              const CallOptions& options = {});
  absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest& request,
                                            const CallOptions& options = {});
  absl::StatusOr<proto::WriteCheckpointReply> WriteCheckpoint(
      const proto::WriteCheckpointRequest& request, const CallOptions& options = {});
  absl::StatusOr<proto::GetChecksumsReply> GetChecksums(const proto::GetChecksumsRequest& request,
                                                        const CallOptions& options = {});
  absl::StatusOr<proto::FenceClientReply> FenceClient(const proto::FenceClientRequest& request,
                                                      const CallOptions& options = {});
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest& request,
                                              const CallOptions& options = {});

  void ConfigureAsync(const proto::ConfigureRequest& request, const CallOptions& options,
                      Done<proto::ConfigureReply> done);
  void BeginAttemptAsync(const proto::BeginAttemptRequest& request, const CallOptions& options,
                         Done<proto::BeginAttemptReply> done);
  void PrepareAsync(const proto::PrepareRequest& request, const CallOptions& options,
                    Done<proto::PrepareReply> done);
  void CommitAsync(const proto::CommitRequest& request, const CallOptions& options,
                   Done<proto::CommitReply> done);
  void WriteCheckpointAsync(const proto::WriteCheckpointRequest& request,
                            const CallOptions& options, Done<proto::WriteCheckpointReply> done);
  void GetChecksumsAsync(const proto::GetChecksumsRequest& request, const CallOptions& options,
                         Done<proto::GetChecksumsReply> done);
  void FenceClientAsync(const proto::FenceClientRequest& request, const CallOptions& options,
                        Done<proto::FenceClientReply> done);

  Channel& channel() { return *channel_; }

 private:
  struct Stub;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<Stub> stub_;  // shared with calls in flight
};

}  // namespace shoal::rpc
