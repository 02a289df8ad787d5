#include "core/rpc/health.h"

#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/support/method_handler.h>

#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "core/base/net/address.h"
#include "core/base/status.h"

namespace shoal::rpc {
namespace {

// gRPC serves health beside a service alone. Nobody can call this one.
class NoService final : public grpc::Service, public Service {
 public:
  NoService() {
    AddMethod(new grpc::internal::RpcServiceMethod("/shoal.proto.None/None",
                                                   grpc::internal::RpcMethod::NORMAL_RPC,
                                                   new grpc::internal::UnknownMethodHandler("")));
  }
  grpc::Service* grpc_service() override { return this; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Health>> Health::Serve(int port, const std::string& listen) {
  auto health = std::make_unique<Health>();
  if (port < 0) {
    return health;
  }
  std::vector<std::unique_ptr<Service>> services;
  services.push_back(std::make_unique<NoService>());
  SHOAL_ASSIGN_OR_RETURN(health->server_,
                         Server::Start({.listen = fmt::format("{}:{}", HostOf(listen), port),
                                        .security = Token::Generate(),
                                        .max_threads = 8,
                                        .health = true},
                                       std::move(services)));
  health->server_->SetServing("live", true);
  health->SetReady(false);
  LogInfo("health on port {}", health->port());
  return health;
}

void Health::Set(const std::string& name, bool serving) {
  if (server_ != nullptr) {
    server_->SetServing(name, serving);
  }
}

}  // namespace shoal::rpc
