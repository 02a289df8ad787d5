// Calls another worker of the group (stages of a pipeline, or all workers of a job): over gRPC, or
// in process in tests.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rpc/security.h"
#include "proto/worker.pb.h"
#include "worker/peers/stage_group.h"

namespace shoal::worker {

class StageClient {
 public:
  virtual ~StageClient() = default;
  // Calls Stage.ConnectStage at `stage` of the group; blocks for at most `timeout`.
  virtual absl::StatusOr<proto::ConnectStageReply> ConnectStage(
      int stage, const proto::ConnectStageRequest& request, absl::Duration timeout) = 0;
  // Calls Stage.JoinRendezvous at that worker of the group; blocks for at most `timeout`.
  virtual absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      int worker, const proto::JoinRendezvousRequest& request, absl::Duration timeout) = 0;
  // Ends current calls, and later ones, with Cancelled. Any thread.
  virtual void Cancel() = 0;
};

std::unique_ptr<StageClient> MakeGrpcStageClient(const WorkerGroup& group,
                                                 const rpc::Security& security);

}  // namespace shoal::worker
