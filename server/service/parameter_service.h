// The parameter server as a plain class: one method for each call of proto ParameterServer. The
// gRPC adapter (core/rpc/parameter_server_service.h) calls it from many threads; tests call it
// directly.
//
// Holds jobs by id (job_table.h) and passes each call on to the one that it names (hosted_job.h). A
// call for a job that is not here is NotFound, by name; while it loads, FailedPrecondition. A
// command of a lower term than one before it is FailedPrecondition too.
//
// Failure: Configure that fails leaves nothing of its job. After a crash the server is simply gone:
// all that must last is in checkpoints and with the coordinator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/metrics.h"
#include "core/rpc/newest_term.h"
#include "core/rpc/parameter_server_service.h"
#include "server/service/hosted_job.h"
#include "server/service/job_table.h"
#include "server/service/server_metrics.h"
#include "server/service/service_options.h"

namespace shoal::server {

class ParameterService final : public rpc::ParameterServerService {
 public:
  ParameterService(ParameterServiceOptions options, Metrics* metrics);
  // Ends what calls may be waiting for, so that a server can shut down. Calls after it may be
  // refused.
  void Stop();

  absl::StatusOr<proto::TakeOverReply> TakeOver(const proto::TakeOverRequest& request) override;
  absl::StatusOr<proto::ConfigureReply> Configure(const proto::ConfigureRequest& request) override;
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(
      const proto::BeginAttemptRequest& request) override;
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request) override;
  absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest& request) override;
  absl::StatusOr<proto::WriteCheckpointReply> WriteCheckpoint(
      const proto::WriteCheckpointRequest& request) override;
  absl::StatusOr<proto::GetChecksumsReply> GetChecksums(
      const proto::GetChecksumsRequest& request) override;
  absl::StatusOr<proto::AdmitClientsReply> AdmitClients(
      const proto::AdmitClientsRequest& request) override;
  absl::StatusOr<proto::FenceClientReply> FenceClient(
      const proto::FenceClientRequest& request) override;
  absl::StatusOr<proto::ReleaseJobReply> ReleaseJob(
      const proto::ReleaseJobRequest& request) override;
  absl::StatusOr<proto::ReserveReply> Reserve(const proto::ReserveRequest& request) override;
  absl::StatusOr<proto::FetchReply> Fetch(const proto::FetchRequest& request) override;
  absl::StatusOr<proto::ReplicateReply> Replicate(const proto::ReplicateRequest& request) override;
  absl::StatusOr<proto::ReadStateReply> ReadState(const proto::ReadStateRequest& request) override;
  absl::StatusOr<proto::ConnectStateReply> ConnectState(
      const proto::ConnectStateRequest& request) override;
  absl::StatusOr<proto::TakeGradientReply> TakeGradient(
      const proto::TakeGradientRequest& request) override;
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest& request) override;
  // Of all jobs, of whose lease was over, and of the coordinator's term: what a process that begins
  // has.
  void ReleaseAll();

 private:
  absl::StatusOr<proto::ConfigureReply> ConfigureJob(const proto::ConfigureRequest& request);
  // Of that run or an earlier one.
  void Release(const std::string& job_id, int64_t run);
  // What it held goes with the last call that uses it.
  static void LetGo(HostedJob& job);

  // Runs a call's body, counts and times it, and logs a refusal.
  template <typename Body>
  auto Counted(const char* operation, const Body& body) -> decltype(body());
  // The job's own method, counted.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> ForJob(const char* operation, const Request& request,
                               absl::StatusOr<Reply> (HostedJob::*method)(const Request&));

  const ParameterServiceOptions options_;
  ServerMetrics metrics_;
  rpc::NewestTerm term_;

  absl::Mutex configure_mutex_;  // one job loads at a time
  JobTable<HostedJob> jobs_;
};

}  // namespace shoal::server
