// What a worker says to its coordinator: the seam between the worker's loop and gRPC.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/rpc/coordinator_client.h"
#include "proto/shoal.pb.h"

namespace shoal::worker {

// Thread-safe; calls block. JoinJob and NextStep wait at the coordinator for up to the request's
// wait_seconds.
class CoordinatorPort {
 public:
  virtual ~CoordinatorPort() = default;
  virtual absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request) = 0;
  virtual absl::StatusOr<proto::RenewLeaseReply> RenewLease(
      const proto::RenewLeaseRequest& request) = 0;
  virtual absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request) = 0;
  virtual absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest& request) = 0;
  virtual absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest& request) = 0;
};

std::unique_ptr<CoordinatorPort> MakeGrpcCoordinatorPort(std::shared_ptr<rpc::Channel> channel);

}  // namespace shoal::worker
