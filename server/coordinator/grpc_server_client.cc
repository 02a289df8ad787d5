#include "server/coordinator/grpc_server_client.h"

#include "fmt/format.h"

namespace shoal::server {
namespace {

// A dead server is noticed by its lease or its broken connection; these bound what a live one may
// take.
constexpr absl::Duration kLoadDeadline = absl::Minutes(60);  // reads a model from a slow disk
constexpr absl::Duration kStepDeadline =
    absl::Minutes(5);  // a commit may wait for a checkpoint's copy
constexpr absl::Duration kCheckpointDeadline = absl::Minutes(60);

}  // namespace

GrpcServerClient::GrpcServerClient(const rpc::Token& token,
                                   const std::vector<std::string>& addresses) {
  for (size_t server = 0; server < addresses.size(); ++server) {
    clients_.push_back(std::make_unique<rpc::ParameterServerClient>(
        rpc::Channel::Create(addresses[server], token, fmt::format("server {}", server))));
  }
}

ServerControlFactory MakeGrpcServerControls(const rpc::Token& token) {
  return [token](const std::vector<std::string>& addresses) {
    return std::make_shared<GrpcServerClient>(token, addresses);
  };
}

GrpcServerClient::~GrpcServerClient() {
  for (const auto& client : clients_) {
    client->channel().Cancel();
  }
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; };
  mutex_.Await(absl::Condition(&idle));
}

template <typename Request, typename Reply>
void GrpcServerClient::Call(int server,
                            void (rpc::ParameterServerClient::*method)(const Request&,
                                                                       const rpc::CallOptions&,
                                                                       Done<Reply>),
                            const Request& request, absl::Duration deadline, Done<Reply> done) {
  {
    absl::MutexLock lock(&mutex_);
    ++in_flight_;
  }
  rpc::ParameterServerClient& client = *clients_[static_cast<size_t>(server)];
  (client.*method)(request, {.deadline = deadline},
                   [this, done = std::move(done)](absl::StatusOr<Reply> reply) {
                     done(std::move(reply));
                     absl::MutexLock lock(&mutex_);
                     --in_flight_;
                   });
}

void GrpcServerClient::Configure(int server, const proto::ConfigureRequest& request,
                                 Done<proto::ConfigureReply> done) {
  Call(server, &rpc::ParameterServerClient::ConfigureAsync, request, kLoadDeadline,
       std::move(done));
}

void GrpcServerClient::BeginAttempt(int server, const proto::BeginAttemptRequest& request,
                                    Done<proto::BeginAttemptReply> done) {
  Call(server, &rpc::ParameterServerClient::BeginAttemptAsync, request, kStepDeadline,
       std::move(done));
}

void GrpcServerClient::Prepare(int server, const proto::PrepareRequest& request,
                               Done<proto::PrepareReply> done) {
  Call(server, &rpc::ParameterServerClient::PrepareAsync, request, kStepDeadline, std::move(done));
}

void GrpcServerClient::Commit(int server, const proto::CommitRequest& request,
                              Done<proto::CommitReply> done) {
  Call(server, &rpc::ParameterServerClient::CommitAsync, request, kStepDeadline, std::move(done));
}

void GrpcServerClient::WriteCheckpoint(int server, const proto::WriteCheckpointRequest& request,
                                       Done<proto::WriteCheckpointReply> done) {
  Call(server, &rpc::ParameterServerClient::WriteCheckpointAsync, request, kCheckpointDeadline,
       std::move(done));
}

void GrpcServerClient::FenceClient(int server, const proto::FenceClientRequest& request,
                                   Done<proto::FenceClientReply> done) {
  Call(server, &rpc::ParameterServerClient::FenceClientAsync, request, kStepDeadline,
       std::move(done));
}

}  // namespace shoal::server
