// Services for tests of what comes before a call reaches one.
#pragma once

#include "core/rpc/coordinator_service.h"
#include "core/rpc/parameter_server_service.h"
#include "core/rpc/stage_service.h"
#include "gmock/gmock.h"

namespace shoal::rpc {

// Without a word of what they answer, mocks answer Unknown.
class AnyCoordinator : public CoordinatorService {
 public:
  MOCK_METHOD(absl::StatusOr<proto::SubmitJobReply>, SubmitJob, (const proto::SubmitJobRequest&));
  MOCK_METHOD(absl::StatusOr<proto::StopJobReply>, StopJob, (const proto::StopJobRequest&));
  MOCK_METHOD(absl::StatusOr<proto::GetStatusReply>, GetStatus, (const proto::GetStatusRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ListJobsReply>, ListJobs, (const proto::ListJobsRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ReadLogReply>, ReadLog, (const proto::ReadLogRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ScaleReply>, Scale, (const proto::ScaleRequest&));
  MOCK_METHOD(absl::StatusOr<proto::RegisterReply>, Register, (const proto::RegisterRequest&));
  MOCK_METHOD(absl::StatusOr<proto::RenewLeaseReply>, RenewLease,
              (const proto::RenewLeaseRequest&));
  MOCK_METHOD(absl::StatusOr<proto::LeaveReply>, Leave, (const proto::LeaveRequest&));
  MOCK_METHOD(absl::StatusOr<HeldCall<proto::HoldConnectionReply>>, HoldConnection,
              (const proto::HoldConnectionRequest&));
  MOCK_METHOD(absl::StatusOr<proto::JoinJobReply>, JoinJob, (const proto::JoinJobRequest&));
  MOCK_METHOD(absl::StatusOr<proto::NextStepReply>, NextStep, (const proto::NextStepRequest&));
  MOCK_METHOD(absl::StatusOr<proto::DrawMicrobatchReply>, DrawMicrobatch,
              (const proto::DrawMicrobatchRequest&));
  MOCK_METHOD(absl::Status, WatchJob, (const proto::WatchJobRequest&, const JobEvents&));
};

class AnyServer : public ParameterServerService {
 public:
  MOCK_METHOD(absl::StatusOr<proto::TakeOverReply>, TakeOver, (const proto::TakeOverRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ConfigureReply>, Configure, (const proto::ConfigureRequest&));
  MOCK_METHOD(absl::StatusOr<proto::BeginAttemptReply>, BeginAttempt,
              (const proto::BeginAttemptRequest&));
  MOCK_METHOD(absl::StatusOr<proto::PrepareReply>, Prepare, (const proto::PrepareRequest&));
  MOCK_METHOD(absl::StatusOr<proto::CommitReply>, Commit, (const proto::CommitRequest&));
  MOCK_METHOD(absl::StatusOr<proto::WriteCheckpointReply>, WriteCheckpoint,
              (const proto::WriteCheckpointRequest&));
  MOCK_METHOD(absl::StatusOr<proto::GetChecksumsReply>, GetChecksums,
              (const proto::GetChecksumsRequest&));
  MOCK_METHOD(absl::StatusOr<proto::AdmitClientsReply>, AdmitClients,
              (const proto::AdmitClientsRequest&));
  MOCK_METHOD(absl::StatusOr<proto::FenceClientReply>, FenceClient,
              (const proto::FenceClientRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ReleaseJobReply>, ReleaseJob,
              (const proto::ReleaseJobRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ReserveReply>, Reserve, (const proto::ReserveRequest&));
  MOCK_METHOD(absl::StatusOr<proto::FetchReply>, Fetch, (const proto::FetchRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ReplicateReply>, Replicate, (const proto::ReplicateRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ReadStateReply>, ReadState, (const proto::ReadStateRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ConnectStateReply>, ConnectState,
              (const proto::ConnectStateRequest&));
  MOCK_METHOD(absl::StatusOr<proto::TakeGradientReply>, TakeGradient,
              (const proto::TakeGradientRequest&));
  MOCK_METHOD(absl::StatusOr<proto::ConnectReply>, Connect, (const proto::ConnectRequest&));
};

class AnyStage : public StageService {
 public:
  MOCK_METHOD(absl::StatusOr<proto::ConnectStageReply>, ConnectStage,
              (const proto::ConnectStageRequest&));
  MOCK_METHOD(absl::StatusOr<proto::JoinRendezvousReply>, JoinRendezvous,
              (const proto::JoinRendezvousRequest&));
};

}  // namespace shoal::rpc
