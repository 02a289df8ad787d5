#include "core/rpc/server.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>

#include "core/base/logging.h"
#include "core/base/net/bounded_relay.h"
#include "core/base/net/listener.h"
#include "core/base/status.h"
#include "core/rpc/grpc_support.h"

namespace shoal::rpc {
namespace {

// Streams of one connection that are not over; a process makes a few calls at a time over one.
constexpr int kMaxStreams = 128;
// Until a connection has said that it speaks HTTP/2, with TLS who it is.
constexpr int kHandshakeTimeoutMs = 20'000;
// A connection without a call for this long is closed. Ours are closed by who made them, before
// (kIdleTimeoutMs), so that no call of theirs meets the end of its connection.
constexpr int kMaxIdleMs = 2 * kIdleTimeoutMs;

// Of probes, which send less than a KiB and are soon done. gRPC would keep a request, however
// large, until all of it is there.
constexpr BoundedRelay::Limits kProbes = {
    .bytes = 16 << 10, .time = absl::Seconds(30), .connections = 256};

void SetChannelArguments(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  // Otherwise a fast peer may send megabytes of a call that nobody has looked at yet.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
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
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<BoundedRelay> relay;  // of a server for probes
  std::unique_ptr<Listener> listener;
  bool down = false;

  // Hands connections to gRPC from now on.
  void Listen() {
    listener->Start([this](UniqueFd connection) {
      if (relay != nullptr) {
        connection = relay->Add(std::move(connection));
      }
      if (connection.valid()) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
        parameters.fd = connection.Release();
        acceptor->HandleNewConnection(&parameters);
      }
    });
  }
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options, std::vector<std::unique_ptr<Service>> services) {
  StartGrpc();
  if (options.security.token().empty()) {
    return InvalidArgument("a server must have a token");
  }
  auto state = std::make_unique<State>();
  SHOAL_ASSIGN_OR_RETURN(state->listener, Listener::Open(options.listen));
  if (options.health) {
    SHOAL_ASSIGN_OR_RETURN(state->relay, BoundedRelay::Start(kProbes));
  }
  state->services = std::move(services);
  grpc::ServerBuilder builder;
  SetChannelArguments(builder);
  grpc::ResourceQuota quota("shoal");
  quota.SetMaxThreads(options.max_threads);
  builder.SetResourceQuota(quota);
  grpc::EnableDefaultHealthCheckService(true);
  if (!options.health) {
    builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  }
  // One queue and a few permanent threads: calls are few, and a thread per call would cost more
  // than the call.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 4);
  state->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      options.security.MakeServerCredentials());
  for (const auto& service : state->services) {
    service->set_security(options.security);
    builder.RegisterService(service->grpc_service());
  }
  state->server = builder.BuildAndStart();
  if (state->server == nullptr) {
    return Internal("cannot serve on {}: gRPC does not start", options.listen);
  }
  if (!options.security.encrypted() && !options.health && !state->listener->is_local()) {
    LogWarning(
        "listens on {} in plain text: who sees the network reads the token, and so may do all that "
        "this job's processes may; start them all with --tls (`shoal tls init` makes the files), "
        "or keep the port within a network that you trust",
        options.listen);
  }
  state->Listen();
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

int Server::port() const { return state_->listener->port(); }

Server::~Server() { Shutdown(absl::Seconds(1)); }

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
  state_->listener->Stop();
  for (const auto& service : state_->services) {
    service->EndHeldCalls();
  }
  state_->server->Shutdown(SteadyDeadline(grace));
  state_->server->Wait();
}

}  // namespace shoal::rpc
