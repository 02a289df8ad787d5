// ServerConnector over gRPC: what programs use.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/server_connector.h"
#include "core/rpc/parameter_server_client.h"
#include "core/rpc/token.h"

namespace shoal::client {

class GrpcConnector final : public ServerConnector {
 public:
  // `addresses` (HOST:PORT) by server index.
  GrpcConnector(const std::vector<std::string>& addresses, const rpc::Token& token);
  ~GrpcConnector() override;

  absl::StatusOr<proto::ConnectReply> Connect(int server, const proto::ConnectRequest& request,
                                              absl::Duration timeout) override;
  void Cancel() override;

 private:
  std::vector<std::unique_ptr<rpc::ParameterServerClient>> servers_;
};

}  // namespace shoal::client
