#include "client/grpc_server_client.h"

#include "client/server_connection.h"
#include "core/base/check.h"
#include "core/rpc/parameter_server_service.h"

namespace shoal::client {

GrpcServerClient::GrpcServerClient(const std::vector<std::string>& addresses,
                                   const rpc::Security& security) {
  for (size_t i = 0; i < addresses.size(); ++i) {
    servers_.push_back(rpc::Channel::Create(addresses[i], security, rpc::Role::kServer,
                                            ServerName(static_cast<int>(i))));
  }
}

GrpcServerClient::~GrpcServerClient() = default;

absl::StatusOr<proto::ConnectReply> GrpcServerClient::Connect(int server,
                                                              const proto::ConnectRequest& request,
                                                              absl::Duration timeout) {
  SHOAL_CHECK(server >= 0 && static_cast<size_t>(server) < servers_.size());
  return servers_[static_cast<size_t>(server)]->Call(&rpc::ParameterServerService::Connect, request,
                                                     {.deadline = timeout});
}

void GrpcServerClient::Cancel() {
  for (const auto& server : servers_) {
    server->Cancel();
  }
}

}  // namespace shoal::client
