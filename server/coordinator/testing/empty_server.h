// A server that holds nothing.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/rpc/parameter_server_service.h"
#include "server/coordinator/testing/fake_job.h"

namespace shoal::server::testing {

// Counts pushes and answers at once. Shared with the workers' threads, which "push" by calling it.
class EmptyServer : public rpc::ParameterServerService {
 public:
  explicit EmptyServer(FakeDisk& disk) : disk_(disk) {}

  void Push() {
    absl::MutexLock lock(&mutex_);
    ++pushes_;
  }

  absl::StatusOr<proto::TakeOverReply> TakeOver(const proto::TakeOverRequest&) override {
    return proto::TakeOverReply();
  }
  absl::StatusOr<proto::ConfigureReply> Configure(const proto::ConfigureRequest& request) override {
    absl::MutexLock lock(&mutex_);
    index_ = request.server_index();
    return proto::ConfigureReply();
  }
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(
      const proto::BeginAttemptRequest&) override {
    absl::MutexLock lock(&mutex_);
    pushes_ = 0;
    return proto::BeginAttemptReply();
  }
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest&) override {
    absl::MutexLock lock(&mutex_);
    proto::PrepareReply reply;
    reply.add_partitions(index_);
    reply.add_sums_of_squares(1);
    reply.add_non_finite(0);
    reply.add_pushes(pushes_);
    return reply;
  }
  absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest& request) override {
    proto::CommitReply reply;
    reply.set_version(request.step());
    return reply;
  }
  absl::StatusOr<proto::WriteCheckpointReply> WriteCheckpoint(
      const proto::WriteCheckpointRequest& request) override {
    proto::WriteCheckpointReply reply;
    if (!request.begin()) {
      reply.add_shards()->set_file("shard");
      absl::MutexLock index_lock(&mutex_);
      absl::MutexLock lock(&disk_.mutex);
      disk_.shards[request.directory()][index_] = "";
    }
    return reply;
  }
  absl::StatusOr<proto::GetChecksumsReply> GetChecksums(
      const proto::GetChecksumsRequest&) override {
    return proto::GetChecksumsReply();
  }
  absl::StatusOr<proto::AdmitClientsReply> AdmitClients(
      const proto::AdmitClientsRequest&) override {
    return proto::AdmitClientsReply();
  }
  absl::StatusOr<proto::FenceClientReply> FenceClient(const proto::FenceClientRequest&) override {
    return proto::FenceClientReply();
  }
  absl::StatusOr<proto::ReleaseJobReply> ReleaseJob(const proto::ReleaseJobRequest&) override {
    return proto::ReleaseJobReply();
  }
  absl::StatusOr<proto::ReserveReply> Reserve(const proto::ReserveRequest&) override {
    return proto::ReserveReply();
  }
  absl::StatusOr<proto::FetchReply> Fetch(const proto::FetchRequest&) override {
    return proto::FetchReply();
  }
  absl::StatusOr<proto::ReplicateReply> Replicate(const proto::ReplicateRequest&) override {
    return proto::ReplicateReply();
  }
  absl::StatusOr<proto::TakeGradientReply> TakeGradient(
      const proto::TakeGradientRequest&) override {
    return proto::TakeGradientReply();
  }
  absl::StatusOr<proto::ReadStateReply> ReadState(const proto::ReadStateRequest&) override {
    return proto::ReadStateReply();
  }
  absl::StatusOr<proto::ConnectStateReply> ConnectState(
      const proto::ConnectStateRequest&) override {
    return proto::ConnectStateReply();
  }
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest&) override {
    return proto::ConnectReply();
  }

 private:
  absl::Mutex mutex_;
  int index_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pushes_ ABSL_GUARDED_BY(mutex_) = 0;
  FakeDisk& disk_;
};

}  // namespace shoal::server::testing
