#include "server/coordinator/grpc_server_client.h"

#include "fmt/format.h"

namespace shoal::server {
namespace {

// The lease or the broken connection tell that a server is dead; these bound a live one.
constexpr absl::Duration kLoadDeadline = absl::Minutes(60);  // reads a model from a slow disk
constexpr absl::Duration kStepDeadline =
    absl::Minutes(5);  // a commit may wait for a checkpoint's copy
constexpr absl::Duration kCheckpointDeadline = absl::Minutes(60);

absl::Duration DeadlineOf(const google::protobuf::Message& request) {
  const auto* const type = request.GetDescriptor();
  if (type == proto::ConfigureRequest::descriptor()) {
    return kLoadDeadline;
  }
  return type == proto::WriteCheckpointRequest::descriptor() ? kCheckpointDeadline : kStepDeadline;
}

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

void GrpcServerClient::Start(int server, const Message& request, Message& reply,
                             std::function<absl::Status(rpc::ParameterServerService&)> /*here*/,
                             std::function<void(const absl::Status&)> done) {
  {
    absl::MutexLock lock(&mutex_);
    ++in_flight_;
  }
  servers_[static_cast<size_t>(server)]->Start(
      request, reply, {.deadline = DeadlineOf(request)},
      [this, done = std::move(done)](const absl::Status& status) {
        done(status);
        absl::MutexLock lock(&mutex_);
        --in_flight_;
      });
}

}  // namespace shoal::server
