#include "core/rpc/server.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/rpc/grpc_support.h"

namespace shoal::rpc {
namespace {

// Binds and releases the address, because gRPC says only that it failed, not why.
absl::Status CheckAddress(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos) {
    return InvalidArgument("cannot listen on '{}': write HOST:PORT", listen);
  }
  std::string host = listen.substr(0, colon);
  const std::string port = listen.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return InvalidArgument("cannot listen on '{}': {}", listen, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  const UniqueFd fd(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0) {
    return Unavailable(
        "cannot listen on {}: {}; choose another address or port (0 picks a free one)", listen,
        std::strerror(errno));
  }
  return absl::OkStatus();
}

void SetChannelArguments(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Otherwise gRPC shares a port that another process has, and calls go to either.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients ping as often as grpc_support.h says, for which a server would disconnect them by
  // default.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kKeepAliveTimeMs / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveTimeoutMs);
}

}  // namespace

struct Server::State {
  std::vector<std::unique_ptr<Service>> services;
  std::unique_ptr<grpc::Server> server;  // destroyed before the services it calls
  bool down = false;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options, std::vector<std::unique_ptr<Service>> services) {
  RouteGrpcLogs();
  if (options.security.token().empty()) {
    return InvalidArgument("a server must have a token");
  }
  SHOAL_RETURN_IF_ERROR(CheckAddress(options.listen));
  grpc::EnableDefaultHealthCheckService(true);
  auto state = std::make_unique<State>();
  state->services = std::move(services);
  grpc::ServerBuilder builder;
  SetChannelArguments(builder);
  grpc::ResourceQuota quota("shoal");
  quota.SetMaxThreads(options.max_threads);
  builder.SetResourceQuota(quota);
  // One queue and a few permanent threads: calls are few, and a thread per call would cost more
  // than the call.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 4);
  int port = 0;
  builder.AddListeningPort(options.listen, options.security.MakeServerCredentials(), &port);
  for (const auto& service : state->services) {
    service->set_security(options.security);
    builder.RegisterService(service->grpc_service());
  }
  state->server = builder.BuildAndStart();
  if (state->server == nullptr || port == 0) {
    return Unavailable("cannot listen on {}; choose another address or port (0 picks a free one)",
                       options.listen);
  }
  auto server = std::unique_ptr<Server>(new Server(std::move(state)));
  server->port_ = port;
  return server;
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Server::~Server() { Shutdown(absl::Seconds(1)); }

void Server::SetServing(bool serving) {
  if (auto* health = state_->server->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(serving);
  }
}

void Server::SetServing(const std::string& name, bool serving) {
  if (auto* health = state_->server->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(name, serving);
  }
}

void Server::Shutdown(absl::Duration grace) {
  if (state_->down) {
    return;
  }
  state_->down = true;
  state_->server->Shutdown(SteadyDeadline(grace));
  state_->server->Wait();
}

}  // namespace shoal::rpc
