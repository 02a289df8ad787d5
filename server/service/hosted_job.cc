#include "server/service/hosted_job.h"

#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::server {
namespace {

constexpr size_t kMostAdmitted = 1 << 20;  // over the job's life

proto::AttemptPhase ToMessage(Phase phase) {
  switch (phase) {
    case Phase::kReady:
      return proto::ATTEMPT_PHASE_NONE;
    case Phase::kOpen:
      return proto::ATTEMPT_PHASE_OPEN;
    case Phase::kSealed:
      return proto::ATTEMPT_PHASE_SEALED;
    case Phase::kFailed:
    case Phase::kCommitting:  // no command is under way
      return proto::ATTEMPT_PHASE_FAILED;
  }
  return proto::ATTEMPT_PHASE_FAILED;
}

}  // namespace

absl::StatusOr<proto::TakeOverReply> HostedJob::TakeOver(const proto::TakeOverRequest& request) {
  // Waits for a command of the earlier life that is under way.
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "TakeOver"));
  if (const std::shared_ptr<CheckpointTask> checkpoint = NewestCheckpoint();
      checkpoint != nullptr && !checkpoint->Done()) {
    checkpoint->GiveUp();
  }
  proto::TakeOverReply reply;
  reply.set_holds(true);
  *reply.mutable_committed() = committed_;
  *reply.mutable_configured() = reply_;
  absl::MutexLock state(&state_mutex_);
  reply.set_version(state_.version());
  reply.set_generation(state_.generation());
  reply.set_step(state_.step());
  reply.set_attempt(state_.attempt());
  reply.set_phase(ToMessage(state_.phase()));
  LogInfo("term {} of the coordinator begins; {}", request.term(), state_.Describe());
  return reply;
}

absl::StatusOr<proto::BeginAttemptReply> HostedJob::BeginAttempt(
    const proto::BeginAttemptRequest& request) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "BeginAttempt"));
  // Waits for pushes being applied, and keeps others out while accumulators are cleared.
  absl::MutexLock state(&state_mutex_);
  SHOAL_ASSIGN_OR_RETURN(
      const Decision decision,
      state_.BeginAttempt(request.step(), request.attempt(), request.generation()));
  if (decision == Decision::kExecute) {
    SHOAL_RETURN_IF_ERROR(store_->failure());
    store_->Clear();
    state_.Opened(request.step(), request.attempt());
    SetLogContext(request.job_id(), request.step());
    for (const uint64_t lost : request.lost_worker()) {
      if (fenced_.insert(lost).second) {
        intake_->Remove(lost);
      }
    }
    intake_->BeginBarriers(request.step(), request.attempt(),
                           {request.barrier_worker().begin(), request.barrier_worker().end()});
    LogDebug("step {} attempt {}: open", request.step(), request.attempt());
  }
  return proto::BeginAttemptReply();
}

absl::StatusOr<proto::PrepareReply> HostedJob::Prepare(const proto::PrepareRequest& request) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "Prepare"));
  {
    // Waits for pushes being applied; later ones find the attempt sealed.
    absl::MutexLock state(&state_mutex_);
    SHOAL_ASSIGN_OR_RETURN(const Decision decision,
                           state_.Prepare(request.step(), request.attempt()));
    if (decision == Decision::kRepeat) {
      return prepared_;
    }
    state_.Sealed();
  }
  prepared_.Clear();
  auto sealed = store_->Seal();
  if (!sealed.ok()) {
    // Keeps later Prepares of this attempt from repeating the first one's answer.
    absl::MutexLock state(&state_mutex_);
    state_.SealingFailed();
    return Annotate(sealed.status(), fmt::format("step {}: adding gradients", request.step()));
  }
  for (const PartitionStatistics& statistics : *sealed) {
    proto::PartitionGradient& partition = *prepared_.add_partitions();
    partition.set_partition(statistics.partition);
    partition.set_sum_of_squares(statistics.gradient.sum_of_squares);
    partition.set_non_finite(statistics.gradient.non_finite);
    partition.set_pushes(statistics.pushes);
  }
  LogDebug("step {} attempt {}: sealed", request.step(), request.attempt());
  return prepared_;
}

absl::StatusOr<proto::CommitReply> HostedJob::Commit(const proto::CommitRequest& request) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "Commit"));
  proto::CommitReply reply;
  reply.set_version(request.step());
  {
    absl::MutexLock state(&state_mutex_);
    SHOAL_ASSIGN_OR_RETURN(const Decision decision,
                           state_.Commit(request.step(), request.attempt()));
    if (decision == Decision::kRepeat) {
      return reply;
    }
    state_.Committing();
  }
  if (const absl::Status committed = CommitAroundCheckpoint(request); !committed.ok()) {
    return Annotate(committed, fmt::format("step {}: updating weights", request.step()));
  }
  committed_ = request;
  absl::MutexLock state(&state_mutex_);
  state_.Committed();
  metrics_.version.Set(static_cast<double>(request.step()));
  LogDebug("step {} attempt {}: committed", request.step(), request.attempt());
  return reply;
}

absl::StatusOr<proto::GetChecksumsReply> HostedJob::GetChecksums(
    const proto::GetChecksumsRequest&) {
  absl::MutexLock commands(&commands_mutex_);
  proto::GetChecksumsReply reply;
  reply.set_version(store_->version());
  SHOAL_ASSIGN_OR_RETURN(const std::vector<PartitionChecksum> checksums, store_->Checksums());
  for (const PartitionChecksum& checksum : checksums) {
    proto::PartitionChecksum& partition = *reply.add_partitions();
    partition.set_partition(checksum.partition);
    partition.set_hash(checksum.hash);
  }
  return reply;
}

absl::StatusOr<proto::AdmitClientsReply> HostedJob::AdmitClients(
    const proto::AdmitClientsRequest& request) {
  // Beside other commands: who joins need not wait for a commit.
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "AdmitClients"));
  absl::MutexLock state(&state_mutex_);
  if (admitted_.size() + static_cast<size_t>(request.incarnation_size()) > kMostAdmitted) {
    return ResourceExhausted("{} clients were admitted already", admitted_.size());
  }
  admitted_.insert(request.incarnation().begin(), request.incarnation().end());
  return proto::AdmitClientsReply();
}

void HostedJob::Fence(uint64_t incarnation) {
  {
    absl::MutexLock state(&state_mutex_);
    fenced_.insert(incarnation);
  }
  intake_->Remove(incarnation);
}

}  // namespace shoal::server
