#include "core/rpc/stage_client.h"

#include "core/rpc/internal_call.h"
#include "proto/worker.grpc.pb.h"

namespace shoal::rpc {

using StageGrpc = proto::Stage::Stub;

struct StageClient::Stub {
  explicit Stub(Channel& channel) : grpc(channel.state().channel) {}
  StageGrpc grpc;
};

StageClient::StageClient(std::shared_ptr<Channel> channel)
    : channel_(std::move(channel)), stub_(std::make_unique<Stub>(*channel_)) {}
StageClient::~StageClient() = default;

absl::StatusOr<proto::ConnectStageReply> StageClient::ConnectStage(
    const proto::ConnectStageRequest& request, const CallOptions& options) {
  proto::ConnectStageReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &StageGrpc::ConnectStage,
                                               "ConnectStage", request, reply, options));
  return reply;
}

absl::StatusOr<proto::JoinRendezvousReply> StageClient::JoinRendezvous(
    const proto::JoinRendezvousRequest& request, const CallOptions& options) {
  proto::JoinRendezvousReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &StageGrpc::JoinRendezvous,
                                               "JoinRendezvous", request, reply, options));
  return reply;
}

}  // namespace shoal::rpc
