// ServerClient over gRPC.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/rpc/security.h"
#include "server/coordinator/job/server_client.h"

namespace shoal::server {

class GrpcServerClient final : public ServerClient {
 public:
  GrpcServerClient(const rpc::Security& security, const std::vector<Member>& servers);
  ~GrpcServerClient() override;

 private:
  void Start(int server, const Message& request, Message& reply,
             std::function<absl::Status(rpc::ParameterServerService&)> here,
             std::function<void(const absl::Status&)> done) override;

  std::vector<std::shared_ptr<rpc::Channel>> servers_;
  absl::Mutex mutex_;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
};

ServerClientFactory MakeGrpcServerClients(const rpc::Security& security);

}  // namespace shoal::server
