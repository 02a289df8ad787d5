#include "server/coordinator/grpc_server_client.h"

#include "fmt/format.h"

namespace shoal::server {
namespace {

// Generous: leases, not deadlines, tell a lost server from a slow one, which may read a model from
// a slow disk, or wait in a commit for a checkpoint.
constexpr absl::Duration kDeadline = absl::Minutes(60);

}  // namespace

GrpcServerClient::GrpcServerClient(const rpc::Security& security,
                                   const std::vector<Member>& servers) {
  for (size_t server = 0; server < servers.size(); ++server) {
    const rpc::Token& own = servers[server].command_token;
    servers_.push_back(rpc::Channel::Create(servers[server].address,
                                            own.empty() ? security : security.WithToken(own),
                                            rpc::Role::kServer, fmt::format("server {}", server)));
  }
}

ServerClientFactory MakeGrpcServerClients(const rpc::Security& security) {
  return [security](const std::vector<Member>& servers) {
    return std::make_shared<GrpcServerClient>(security, servers);
  };
}

GrpcServerClient::~GrpcServerClient() {
  for (const auto& server : servers_) {
    server->Cancel();
  }
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; };
  mutex_.Await(absl::Condition(&idle));
}

void GrpcServerClient::Start(int server, const Message& request, Message& reply,
                             std::function<absl::Status(rpc::ParameterServerService&)> /*here*/,
                             std::function<void(const absl::Status&)> done) {
  {
    absl::MutexLock lock(&mutex_);
    ++in_flight_;
  }
  servers_[static_cast<size_t>(server)]->Start(
      request, reply, {.deadline = kDeadline},
      [this, done = std::move(done)](const absl::Status& status) {
        done(status);
        absl::MutexLock lock(&mutex_);
        --in_flight_;
      });
}

}  // namespace shoal::server
