// The interface of a coordinator; MakeCoordinatorService puts it behind gRPC.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/rpc/server.h"
#include "proto/coordinator.pb.h"

namespace shoal::rpc {

using JobEvents = EventStream<proto::JobEvent>;

// Runs on gRPC's threads, concurrently; may block (a call holds a thread).
class CoordinatorService {
 public:
  virtual ~CoordinatorService() = default;
  virtual absl::StatusOr<proto::SubmitJobReply> SubmitJob(
      const proto::SubmitJobRequest& request) = 0;
  virtual absl::StatusOr<proto::StopJobReply> StopJob(const proto::StopJobRequest& request) = 0;
  virtual absl::StatusOr<proto::GetStatusReply> GetStatus(
      const proto::GetStatusRequest& request) = 0;
  virtual absl::StatusOr<proto::ListJobsReply> ListJobs(const proto::ListJobsRequest& request) = 0;
  virtual absl::StatusOr<proto::ReadLogReply> ReadLog(const proto::ReadLogRequest& request) = 0;
  virtual absl::StatusOr<proto::ScaleReply> Scale(const proto::ScaleRequest& request) = 0;
  virtual absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request) = 0;
  virtual absl::StatusOr<proto::RenewLeaseReply> RenewLease(
      const proto::RenewLeaseRequest& request) = 0;
  virtual absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request) = 0;
  virtual absl::StatusOr<HeldCall<proto::HoldConnectionReply>> HoldConnection(
      const proto::HoldConnectionRequest& request) = 0;
  virtual absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest& request) = 0;
  virtual absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest& request) = 0;
  virtual absl::StatusOr<proto::DrawMicrobatchReply> DrawMicrobatch(
      const proto::DrawMicrobatchRequest& request) = 0;
  // Returns when the job is over, the watcher is gone or the coordinator stops.
  virtual absl::Status WatchJob(const proto::WatchJobRequest& request, const JobEvents& events) = 0;
};

// `service` must outlive the server.
std::unique_ptr<Service> MakeCoordinatorService(CoordinatorService* service);

}  // namespace shoal::rpc
