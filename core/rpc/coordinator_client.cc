#include "core/rpc/coordinator_client.h"

#include "core/rpc/internal_call.h"
#include "proto/coordinator.grpc.pb.h"

namespace shoal::rpc {

using CoordinatorGrpc = proto::Coordinator::Stub;

struct CoordinatorClient::Stub {
  explicit Stub(Channel& channel) : grpc(channel.state().channel) {}
  CoordinatorGrpc grpc;
};

CoordinatorClient::CoordinatorClient(std::shared_ptr<Channel> channel)
    : channel_(std::move(channel)), stub_(std::make_unique<Stub>(*channel_)) {}
CoordinatorClient::~CoordinatorClient() = default;

absl::StatusOr<proto::SubmitJobReply> CoordinatorClient::SubmitJob(
    const proto::SubmitJobRequest& request, const CallOptions& options) {
  proto::SubmitJobReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &CoordinatorGrpc::SubmitJob,
                                               "SubmitJob", request, reply, options));
  return reply;
}

absl::StatusOr<proto::StopJobReply> CoordinatorClient::StopJob(const proto::StopJobRequest& request,
                                                               const CallOptions& options) {
  proto::StopJobReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &CoordinatorGrpc::StopJob,
                                               "StopJob", request, reply, options));
  return reply;
}

absl::StatusOr<proto::GetStatusReply> CoordinatorClient::GetStatus(
    const proto::GetStatusRequest& request, const CallOptions& options) {
  proto::GetStatusReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &CoordinatorGrpc::GetStatus,
                                               "GetStatus", request, reply, options));
  return reply;
}

absl::StatusOr<proto::RegisterReply> CoordinatorClient::Register(
    const proto::RegisterRequest& request, const CallOptions& options) {
  proto::RegisterReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &CoordinatorGrpc::Register,
                                               "Register", request, reply, options));
  return reply;
}

absl::StatusOr<proto::RenewLeaseReply> CoordinatorClient::RenewLease(
    const proto::RenewLeaseRequest& request, const CallOptions& options) {
  proto::RenewLeaseReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &CoordinatorGrpc::RenewLease,
                                               "RenewLease", request, reply, options));
  return reply;
}

absl::StatusOr<proto::LeaveReply> CoordinatorClient::Leave(const proto::LeaveRequest& request,
                                                           const CallOptions& options) {
  proto::LeaveReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &CoordinatorGrpc::Leave,
                                               "Leave", request, reply, options));
  return reply;
}

absl::StatusOr<proto::JoinJobReply> CoordinatorClient::JoinJob(const proto::JoinJobRequest& request,
                                                               const CallOptions& options) {
  proto::JoinJobReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &CoordinatorGrpc::JoinJob,
                                               "JoinJob", request, reply, options));
  return reply;
}

absl::StatusOr<proto::NextStepReply> CoordinatorClient::NextStep(
    const proto::NextStepRequest& request, const CallOptions& options) {
  proto::NextStepReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc, &CoordinatorGrpc::NextStep,
                                               "NextStep", request, reply, options));
  return reply;
}

absl::StatusOr<proto::DrawMicrobatchReply> CoordinatorClient::DrawMicrobatch(
    const proto::DrawMicrobatchRequest& request, const CallOptions& options) {
  proto::DrawMicrobatchReply reply;
  SHOAL_RETURN_IF_ERROR(internal::BlockingCall(*channel_, stub_->grpc,
                                               &CoordinatorGrpc::DrawMicrobatch, "DrawMicrobatch",
                                               request, reply, options));
  return reply;
}

absl::Status CoordinatorClient::WatchJob(
    const proto::WatchJobRequest& request,
    const std::function<bool(const proto::JobEvent&)>& on_event, const CallOptions& options) {
  grpc::ClientContext context;
  if (!channel_->state().Begin(context, options)) {
    return internal::CallError(*channel_, "WatchJob",
                               absl::CancelledError("this process is leaving"));
  }
  const auto reader = stub_->grpc.WatchJob(&context, request);
  proto::JobEvent event;
  bool wanted = true;
  while (wanted && reader->Read(&event)) {
    wanted = on_event(event);
  }
  if (!wanted) {
    context.TryCancel();
  }
  const absl::Status status = FromGrpc(reader->Finish());
  channel_->state().End(context);
  return wanted ? internal::CallError(*channel_, "WatchJob", status) : absl::OkStatus();
}

}  // namespace shoal::rpc
