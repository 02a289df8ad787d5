// What a worker's loop asks its coordinator: the seam between it and gRPC.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rpc/channel.h"
#include "proto/coordinator.pb.h"

namespace shoal::worker {

// Calls block, and wait at the coordinator for up to the request's wait_seconds.
class CoordinatorClient {
 public:
  virtual ~CoordinatorClient() = default;
  virtual absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest& request) = 0;
  virtual absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest& request) = 0;
  // Answers at once.
  virtual absl::StatusOr<proto::DrawMicrobatchReply> DrawMicrobatch(
      const proto::DrawMicrobatchRequest& request) = 0;
};

// Whether the coordinator may answer the same question a little later.
bool IsTransient(const absl::Status& status);

std::unique_ptr<CoordinatorClient> MakeGrpcCoordinatorClient(std::shared_ptr<rpc::Channel> channel);

}  // namespace shoal::worker
