// ServerClient over gRPC, for programs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/server_client.h"
#include "core/rpc/channel.h"
#include "core/rpc/security.h"

namespace shoal::client {

class GrpcServerClient final : public ServerClient {
 public:
  // `addresses` (HOST:PORT) by server index.
  GrpcServerClient(const std::vector<std::string>& addresses, const rpc::Security& security);
  ~GrpcServerClient() override;

  absl::StatusOr<proto::ConnectReply> Connect(int server, const proto::ConnectRequest& request,
                                              absl::Duration timeout) override;
  void Cancel() override;

 private:
  std::vector<std::shared_ptr<rpc::Channel>> servers_;
};

}  // namespace shoal::client
