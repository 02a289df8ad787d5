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
    servers_.push_back(
        rpc::Channel::Create(addresses[server], token, fmt::format("server {}", server)));
  }
}

ServerControlFactory MakeGrpcServerControls(const rpc::Token& token) {
  return [token](const std::vector<std::string>& addresses) {
    return std::make_shared<GrpcServerClient>(token, addresses);
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

template <typename Request, typename Reply>
void GrpcServerClient::Call(
    int server, absl::StatusOr<Reply> (rpc::ParameterServerService::*method)(const Request&),
    const Request& request, absl::Duration deadline, Done<Reply> done) {
  {
    absl::MutexLock lock(&mutex_);
    ++in_flight_;
  }
  servers_[static_cast<size_t>(server)]->CallAsync(
      method, request, {.deadline = deadline},
      [this, done = std::move(done)](absl::StatusOr<Reply> reply) {
        done(std::move(reply));
        absl::MutexLock lock(&mutex_);
        --in_flight_;
      });
}

void GrpcServerClient::Configure(int server, const proto::ConfigureRequest& request,
                                 Done<proto::ConfigureReply> done) {
  Call(server, &rpc::ParameterServerService::Configure, request, kLoadDeadline, std::move(done));
}

void GrpcServerClient::BeginAttempt(int server, const proto::BeginAttemptRequest& request,
                                    Done<proto::BeginAttemptReply> done) {
  Call(server, &rpc::ParameterServerService::BeginAttempt, request, kStepDeadline, std::move(done));
}

void GrpcServerClient::Prepare(int server, const proto::PrepareRequest& request,
                               Done<proto::PrepareReply> done) {
  Call(server, &rpc::ParameterServerService::Prepare, request, kStepDeadline, std::move(done));
}

void GrpcServerClient::Commit(int server, const proto::CommitRequest& request,
                              Done<proto::CommitReply> done) {
  Call(server, &rpc::ParameterServerService::Commit, request, kStepDeadline, std::move(done));
}

void GrpcServerClient::WriteCheckpoint(int server, const proto::WriteCheckpointRequest& request,
                                       Done<proto::WriteCheckpointReply> done) {
  Call(server, &rpc::ParameterServerService::WriteCheckpoint, request, kCheckpointDeadline,
       std::move(done));
}

void GrpcServerClient::FenceClient(int server, const proto::FenceClientRequest& request,
                                   Done<proto::FenceClientReply> done) {
  Call(server, &rpc::ParameterServerService::FenceClient, request, kStepDeadline, std::move(done));
}

}  // namespace shoal::server
