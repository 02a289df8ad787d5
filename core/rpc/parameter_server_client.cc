#include "core/rpc/parameter_server_client.h"

#include "core/rpc/internal_call.h"
#include "proto/server.grpc.pb.h"

namespace shoal::rpc {

using ParameterServerGrpc = proto::ParameterServer::Stub;

struct ParameterServerClient::Stub {
  explicit Stub(Channel& channel) : grpc(channel.state().channel) {}
  ParameterServerGrpc grpc;
};

ParameterServerClient::ParameterServerClient(std::shared_ptr<Channel> channel)
    : channel_(std::move(channel)), stub_(std::make_shared<Stub>(*channel_)) {}
ParameterServerClient::~ParameterServerClient() = default;

absl::StatusOr<proto::ConfigureReply> ParameterServerClient::Configure(
    const proto::ConfigureRequest& request, const CallOptions& options) {
  proto::ConfigureReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc,
                                               &ParameterServerGrpc::Configure, "Configure",
                                               request, reply, options));
  return reply;
}

absl::StatusOr<proto::BeginAttemptReply> ParameterServerClient::BeginAttempt(
    const proto::BeginAttemptRequest& request, const CallOptions& options) {
  proto::BeginAttemptReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc,
                                               &ParameterServerGrpc::BeginAttempt, "BeginAttempt",
                                               request, reply, options));
  return reply;
}

absl::StatusOr<proto::PrepareReply> ParameterServerClient::Prepare(
    const proto::PrepareRequest& request, const CallOptions& options) {
  proto::PrepareReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(
      *channel_, stub_->grpc, &ParameterServerGrpc::Prepare, "Prepare", request, reply, options));
  return reply;
}

absl::StatusOr<proto::CommitReply> ParameterServerClient::Commit(
    const proto::CommitRequest& request, const CallOptions& options) {
  proto::CommitReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &ParameterServerGrpc::Commit,
                                               "Commit", request, reply, options));
  return reply;
}

absl::StatusOr<proto::WriteCheckpointReply> ParameterServerClient::WriteCheckpoint(
    const proto::WriteCheckpointRequest& request, const CallOptions& options) {
  proto::WriteCheckpointReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc,
                                               &ParameterServerGrpc::WriteCheckpoint,
                                               "WriteCheckpoint", request, reply, options));
  return reply;
}

absl::StatusOr<proto::GetChecksumsReply> ParameterServerClient::GetChecksums(
    const proto::GetChecksumsRequest& request, const CallOptions& options) {
  proto::GetChecksumsReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc,
                                               &ParameterServerGrpc::GetChecksums, "GetChecksums",
                                               request, reply, options));
  return reply;
}

absl::StatusOr<proto::FenceClientReply> ParameterServerClient::FenceClient(
    const proto::FenceClientRequest& request, const CallOptions& options) {
  proto::FenceClientReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc,
                                               &ParameterServerGrpc::FenceClient, "FenceClient",
                                               request, reply, options));
  return reply;
}

absl::StatusOr<proto::ConnectReply> ParameterServerClient::Connect(
    const proto::ConnectRequest& request, const CallOptions& options) {
  proto::ConnectReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(
      *channel_, stub_->grpc, &ParameterServerGrpc::Connect, "Connect", request, reply, options));
  return reply;
}

void ParameterServerClient::ConfigureAsync(const proto::ConfigureRequest& request,
                                           const CallOptions& options,
                                           Done<proto::ConfigureReply> done) {
  auto start = [stub = stub_](auto... arguments) { stub->grpc.async()->Configure(arguments...); };
  internal::AsyncCall<proto::ConfigureRequest, proto::ConfigureReply>(
      channel_, "Configure", request, options, std::move(done), start);
}

void ParameterServerClient::BeginAttemptAsync(const proto::BeginAttemptRequest& request,
                                              const CallOptions& options,
                                              Done<proto::BeginAttemptReply> done) {
  auto start = [stub = stub_](auto... arguments) {
    stub->grpc.async()->BeginAttempt(arguments...);
  };
  internal::AsyncCall<proto::BeginAttemptRequest, proto::BeginAttemptReply>(
      channel_, "BeginAttempt", request, options, std::move(done), start);
}

void ParameterServerClient::PrepareAsync(const proto::PrepareRequest& request,
                                         const CallOptions& options,
                                         Done<proto::PrepareReply> done) {
  auto start = [stub = stub_](auto... arguments) { stub->grpc.async()->Prepare(arguments...); };
  internal::AsyncCall<proto::PrepareRequest, proto::PrepareReply>(channel_, "Prepare", request,
                                                                  options, std::move(done), start);
}

void ParameterServerClient::CommitAsync(const proto::CommitRequest& request,
                                        const CallOptions& options, Done<proto::CommitReply> done) {
  auto start = [stub = stub_](auto... arguments) { stub->grpc.async()->Commit(arguments...); };
  internal::AsyncCall<proto::CommitRequest, proto::CommitReply>(channel_, "Commit", request,
                                                                options, std::move(done), start);
}

void ParameterServerClient::WriteCheckpointAsync(const proto::WriteCheckpointRequest& request,
                                                 const CallOptions& options,
                                                 Done<proto::WriteCheckpointReply> done) {
  auto start = [stub = stub_](auto... arguments) {
    stub->grpc.async()->WriteCheckpoint(arguments...);
  };
  internal::AsyncCall<proto::WriteCheckpointRequest, proto::WriteCheckpointReply>(
      channel_, "WriteCheckpoint", request, options, std::move(done), start);
}

void ParameterServerClient::GetChecksumsAsync(const proto::GetChecksumsRequest& request,
                                              const CallOptions& options,
                                              Done<proto::GetChecksumsReply> done) {
  auto start = [stub = stub_](auto... arguments) {
    stub->grpc.async()->GetChecksums(arguments...);
  };
  internal::AsyncCall<proto::GetChecksumsRequest, proto::GetChecksumsReply>(
      channel_, "GetChecksums", request, options, std::move(done), start);
}

void ParameterServerClient::FenceClientAsync(const proto::FenceClientRequest& request,
                                             const CallOptions& options,
                                             Done<proto::FenceClientReply> done) {
  auto start = [stub = stub_](auto... arguments) { stub->grpc.async()->FenceClient(arguments...); };
  internal::AsyncCall<proto::FenceClientRequest, proto::FenceClientReply>(
      channel_, "FenceClient", request, options, std::move(done), start);
}

}  // namespace shoal::rpc
