// The interface of a parameter server; MakeParameterServerService puts it behind gRPC.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/rpc/server.h"
#include "proto/server.pb.h"

namespace shoal::rpc {

// Runs on gRPC's threads, concurrently; may block (a call holds a thread).
class ParameterServerService {
 public:
  virtual ~ParameterServerService() = default;
  virtual absl::StatusOr<proto::TakeOverReply> TakeOver(const proto::TakeOverRequest& request) = 0;
  virtual absl::StatusOr<proto::ConfigureReply> Configure(
      const proto::ConfigureRequest& request) = 0;
  virtual absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(
      const proto::BeginAttemptRequest& request) = 0;
  virtual absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request) = 0;
  virtual absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest& request) = 0;
  virtual absl::StatusOr<proto::WriteCheckpointReply> WriteCheckpoint(
      const proto::WriteCheckpointRequest& request) = 0;
  virtual absl::StatusOr<proto::GetChecksumsReply> GetChecksums(
      const proto::GetChecksumsRequest& request) = 0;
  virtual absl::StatusOr<proto::AdmitClientsReply> AdmitClients(
      const proto::AdmitClientsRequest& request) = 0;
  virtual absl::StatusOr<proto::FenceClientReply> FenceClient(
      const proto::FenceClientRequest& request) = 0;
  virtual absl::StatusOr<proto::ReleaseJobReply> ReleaseJob(
      const proto::ReleaseJobRequest& request) = 0;
  virtual absl::StatusOr<proto::ReserveReply> Reserve(const proto::ReserveRequest& request) = 0;
  virtual absl::StatusOr<proto::FetchReply> Fetch(const proto::FetchRequest& request) = 0;
  virtual absl::StatusOr<proto::ReplicateReply> Replicate(
      const proto::ReplicateRequest& request) = 0;
  virtual absl::StatusOr<proto::ReadStateReply> ReadState(
      const proto::ReadStateRequest& request) = 0;
  virtual absl::StatusOr<proto::ConnectStateReply> ConnectState(
      const proto::ConnectStateRequest& request) = 0;
  virtual absl::StatusOr<proto::TakeGradientReply> TakeGradient(
      const proto::TakeGradientRequest& request) = 0;
  virtual absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest& request) = 0;
};

// `service` must outlive the server.
std::unique_ptr<Service> MakeParameterServerService(ParameterServerService* service);

}  // namespace shoal::rpc
