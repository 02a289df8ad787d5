#include "server/coordinator/standby_service.h"

#include "core/rpc/channel.h"

namespace shoal::server {

using rpc::CoordinatorService;

void StandbyService::SetLeader(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  leader_ = address;
}

absl::Status StandbyService::StandsBy() const {
  absl::MutexLock lock(&mutex_);
  return rpc::StandsBy(leader_);
}

template <typename Request, typename Reply>
absl::StatusOr<Reply> StandbyService::Pass(
    const Request& request, absl::StatusOr<Reply> (CoordinatorService::*method)(const Request&)) {
  CoordinatorService* const coordinator = coordinator_;
  return coordinator == nullptr ? StandsBy() : (coordinator->*method)(request);
}

absl::StatusOr<proto::SubmitJobReply> StandbyService::SubmitJob(
    const proto::SubmitJobRequest& request) {
  return Pass(request, &CoordinatorService::SubmitJob);
}

absl::StatusOr<proto::StopJobReply> StandbyService::StopJob(const proto::StopJobRequest& request) {
  return Pass(request, &CoordinatorService::StopJob);
}

absl::StatusOr<proto::GetStatusReply> StandbyService::GetStatus(
    const proto::GetStatusRequest& request) {
  return Pass(request, &CoordinatorService::GetStatus);
}

absl::StatusOr<proto::ListJobsReply> StandbyService::ListJobs(
    const proto::ListJobsRequest& request) {
  return Pass(request, &CoordinatorService::ListJobs);
}

absl::StatusOr<proto::ReadLogReply> StandbyService::ReadLog(const proto::ReadLogRequest& request) {
  return Pass(request, &CoordinatorService::ReadLog);
}

absl::StatusOr<proto::ScaleReply> StandbyService::Scale(const proto::ScaleRequest& request) {
  return Pass(request, &CoordinatorService::Scale);
}

absl::StatusOr<proto::RegisterReply> StandbyService::Register(
    const proto::RegisterRequest& request) {
  return Pass(request, &CoordinatorService::Register);
}

absl::StatusOr<proto::RenewLeaseReply> StandbyService::RenewLease(
    const proto::RenewLeaseRequest& request) {
  return Pass(request, &CoordinatorService::RenewLease);
}

absl::StatusOr<proto::LeaveReply> StandbyService::Leave(const proto::LeaveRequest& request) {
  return Pass(request, &CoordinatorService::Leave);
}

absl::StatusOr<rpc::HeldCall<proto::HoldConnectionReply>> StandbyService::HoldConnection(
    const proto::HoldConnectionRequest& request) {
  return Pass(request, &CoordinatorService::HoldConnection);
}

absl::StatusOr<proto::JoinJobReply> StandbyService::JoinJob(const proto::JoinJobRequest& request) {
  return Pass(request, &CoordinatorService::JoinJob);
}

absl::StatusOr<proto::NextStepReply> StandbyService::NextStep(
    const proto::NextStepRequest& request) {
  return Pass(request, &CoordinatorService::NextStep);
}

absl::StatusOr<proto::DrawMicrobatchReply> StandbyService::DrawMicrobatch(
    const proto::DrawMicrobatchRequest& request) {
  return Pass(request, &CoordinatorService::DrawMicrobatch);
}

absl::Status StandbyService::WatchJob(const proto::WatchJobRequest& request,
                                      const rpc::JobEvents& events) {
  CoordinatorService* const coordinator = coordinator_;
  return coordinator == nullptr ? StandsBy() : coordinator->WatchJob(request, events);
}

}  // namespace shoal::server
