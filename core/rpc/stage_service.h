// The interface of a worker for other workers (stages of a pipeline, peers that exchange);
// MakeStageService puts it behind gRPC.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/rpc/server.h"
#include "proto/worker.pb.h"

namespace shoal::rpc {

// Runs on gRPC's threads, concurrently; may block (a call holds a thread).
class StageService {
 public:
  virtual ~StageService() = default;
  virtual absl::StatusOr<proto::ConnectStageReply> ConnectStage(
      const proto::ConnectStageRequest& request) = 0;
  virtual absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      const proto::JoinRendezvousRequest& request) = 0;
};

// `service` must outlive the server.
std::unique_ptr<Service> MakeStageService(StageService* service);

}  // namespace shoal::rpc
