// What a coordinator's port answers: that it stands by, until it leads, and from then on what the
// coordinator does. Thread-safe.
#pragma once

#include <atomic>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/rpc/coordinator_service.h"

namespace shoal::server {

class StandbyService final : public rpc::CoordinatorService {
 public:
  // Who leads, HOST:PORT; empty: nobody at the moment.
  void SetLeader(const std::string& address);
  // From now on all calls go there. It must outlive the server that calls this.
  void Lead(rpc::CoordinatorService* coordinator) { coordinator_ = coordinator; }

  absl::StatusOr<proto::SubmitJobReply> SubmitJob(const proto::SubmitJobRequest& request) override;
  absl::StatusOr<proto::StopJobReply> StopJob(const proto::StopJobRequest& request) override;
  absl::StatusOr<proto::GetStatusReply> GetStatus(const proto::GetStatusRequest& request) override;
  absl::StatusOr<proto::ListJobsReply> ListJobs(const proto::ListJobsRequest& request) override;
  absl::StatusOr<proto::ReadLogReply> ReadLog(const proto::ReadLogRequest& request) override;
  absl::StatusOr<proto::ScaleReply> Scale(const proto::ScaleRequest& request) override;
  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request) override;
  absl::StatusOr<proto::RenewLeaseReply> RenewLease(
      const proto::RenewLeaseRequest& request) override;
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request) override;
  absl::StatusOr<rpc::HeldCall<proto::HoldConnectionReply>> HoldConnection(
      const proto::HoldConnectionRequest& request) override;
  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest& request) override;
  absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest& request) override;
  absl::StatusOr<proto::DrawMicrobatchReply> DrawMicrobatch(
      const proto::DrawMicrobatchRequest& request) override;
  absl::Status WatchJob(const proto::WatchJobRequest& request,
                        const rpc::JobEvents& events) override;

 private:
  absl::Status StandsBy() const;
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Pass(
      const Request& request,
      absl::StatusOr<Reply> (rpc::CoordinatorService::*method)(const Request&));

  std::atomic<rpc::CoordinatorService*> coordinator_ = nullptr;
  mutable absl::Mutex mutex_;
  std::string leader_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::server
