// ServerClient over gRPC.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/rpc/channel.h"
#include "core/rpc/parameter_server_service.h"
#include "server/coordinator/job/server_client.h"

namespace shoal::server {

class GrpcServerClient final : public ServerClient {
 public:
  GrpcServerClient(const rpc::Token& token, const std::vector<std::string>& addresses);
  ~GrpcServerClient() override;

  void Configure(int server, const proto::ConfigureRequest& request,
                 Done<proto::ConfigureReply> done) override;
  void BeginAttempt(int server, const proto::BeginAttemptRequest& request,
                    Done<proto::BeginAttemptReply> done) override;
  void Prepare(int server, const proto::PrepareRequest& request,
               Done<proto::PrepareReply> done) override;
  void Commit(int server, const proto::CommitRequest& request,
              Done<proto::CommitReply> done) override;
  void WriteCheckpoint(int server, const proto::WriteCheckpointRequest& request,
                       Done<proto::WriteCheckpointReply> done) override;
  void FenceClient(int server, const proto::FenceClientRequest& request,
                   Done<proto::FenceClientReply> done) override;

 private:
  template <typename Request, typename Reply>
  void Call(int server,
            absl::StatusOr<Reply> (rpc::ParameterServerService::*method)(const Request&),
            const Request& request, absl::Duration deadline, Done<Reply> done);

  std::vector<std::shared_ptr<rpc::Channel>> servers_;
  absl::Mutex mutex_;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
};

ServerControlFactory MakeGrpcServerControls(const rpc::Token& token);

}  // namespace shoal::server
