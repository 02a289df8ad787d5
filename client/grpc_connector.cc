#include "client/grpc_connector.h"

#include "client/handshake.h"
#include "core/base/check.h"

namespace shoal::client {

GrpcConnector::GrpcConnector(const std::vector<std::string>& addresses, const rpc::Token& token) {
  for (size_t i = 0; i < addresses.size(); ++i) {
    servers_.push_back(std::make_unique<rpc::ParameterServerClient>(
        rpc::Channel::Create(addresses[i], token, ServerName(static_cast<int>(i)))));
  }
}

GrpcConnector::~GrpcConnector() = default;

absl::StatusOr<proto::ConnectReply> GrpcConnector::Connect(int server,
                                                           const proto::ConnectRequest& request,
                                                           absl::Duration timeout) {
  SHOAL_CHECK(server >= 0 && static_cast<size_t>(server) < servers_.size());
  return servers_[static_cast<size_t>(server)]->Connect(request, {.deadline = timeout});
}

void GrpcConnector::Cancel() {
  for (const auto& server : servers_) {
    server->channel().Cancel();
  }
}

}  // namespace shoal::client
