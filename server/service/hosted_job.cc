#include "server/service/hosted_job.h"

#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::server {

absl::StatusOr<proto::TakeOverReply> HostedJob::TakeOver(const proto::TakeOverRequest& request) {
  SHOAL_ASSIGN_OR_RETURN(proto::TakeOverReply reply, core_->TakeOver(request, [this] {
    if (const std::shared_ptr<CheckpointTask> checkpoint = NewestCheckpoint();
        checkpoint != nullptr && !checkpoint->Done()) {
      checkpoint->GiveUp();
    }
  }));
  *reply.mutable_configured() = reply_;
  LogInfo("term {} of the coordinator begins; {}", request.term(), core_->state().Describe());
  return reply;
}

absl::StatusOr<proto::BeginAttemptReply> HostedJob::BeginAttempt(
    const proto::BeginAttemptRequest& request) {
  // A handshake tells what is held.
  const absl::MutexLockMaybe no_handshake(request.has_held() ? &connect_mutex_ : nullptr);
  if (const auto checkpoint = NewestCheckpoint(); request.has_held() && checkpoint != nullptr) {
    checkpoint->Wait(options_.checkpoint_timeout).IgnoreError();  // it reads what may go
  }
  return core_->BeginAttempt(request, [&] {
    FollowExtents();
    SetLogContext(request.job_id(), request.step());
    spans_.Begin(request);
    if (gradients_ != nullptr) {
      gradients_->Begin(request);
    }
    intake_->BeginBarriers(request.step(), request.attempt(),
                           {request.barrier_worker().begin(), request.barrier_worker().end()});
    LogDebug("step {} attempt {}: open", request.step(), request.attempt());
  });
}

absl::StatusOr<proto::PrepareReply> HostedJob::Prepare(const proto::PrepareRequest& request) {
  const absl::Time start = options_.clock->Now();
  SHOAL_ASSIGN_OR_RETURN(proto::PrepareReply reply, core_->Prepare(request));
  if (gradients_ != nullptr) {
    gradients_->End();
  }
  spans_.AddCommand(request.step(), request.attempt(), proto::ServerSpan::KIND_SEAL, start,
                    options_.clock->Now());
  LogDebug("step {} attempt {}: sealed", request.step(), request.attempt());
  return reply;
}

absl::StatusOr<proto::CommitReply> HostedJob::Commit(const proto::CommitRequest& request) {
  const auto update = [&]() -> absl::Status {
    const absl::Time start = options_.clock->Now();
    SHOAL_RETURN_IF_ERROR(CommitAroundCheckpoint(request));
    spans_.AddCommand(request.step(), request.attempt(), proto::ServerSpan::KIND_UPDATE, start,
                      options_.clock->Now());
    metrics_.version.Set(static_cast<double>(request.step()));
    FollowTransports();
    LogDebug("step {} attempt {}: committed", request.step(), request.attempt());
    return absl::OkStatus();
  };
  SHOAL_ASSIGN_OR_RETURN(proto::CommitReply reply, core_->Commit(request, update));
  spans_.Fill(request.step(), request.attempt(), reply);
  return reply;
}

absl::StatusOr<proto::GetChecksumsReply> HostedJob::GetChecksums(
    const proto::GetChecksumsRequest&) {
  return core_->GetChecksums();
}

absl::StatusOr<proto::AdmitClientsReply> HostedJob::AdmitClients(
    const proto::AdmitClientsRequest& request) {
  return core_->AdmitClients(request);
}

void HostedJob::FollowTransports() {
  for (EnabledTransport& enabled : transports_) {
    metrics_.FollowTransport(*enabled.transport, enabled.counted);
  }
}

std::string HostedJob::WhyRefused(absl::StatusCode code) const {
  switch (code) {
    case absl::StatusCode::kDataLoss:
      return "its payload is not what was sent, which is sent again over a new connection";
    case absl::StatusCode::kUnimplemented:
      return "it is frozen (train.groups) and takes no gradient";
    default:
      return core_->state().Describe();
  }
}

PushVerdict HostedJob::TakePush(const ClientIdentity& client, const transport::PushHeader& header,
                                const PushPayload& payload) {
  const absl::Time start = options_.clock->Now();
  const PushVerdict verdict = core_->TakePush(client, header, payload);
  if (verdict.code != absl::StatusCode::kOk) {
    refused_pushes_.Warn([&] {
      return fmt::format(
          "push of {} is refused with {}: partition {} step {} attempt {} key {} generation "
          "{}; {}",
          client.name, absl::StatusCodeToString(verdict.code), header.partition, header.step,
          header.attempt, header.key, header.generation, WhyRefused(verdict.code));
    });
    metrics_.CountRequest("push", verdict.code);
  } else {
    (verdict.applied_before ? metrics_.duplicate_pushes : metrics_.applied_pushes).Increment();
  }
  if (verdict.complete && gradients_ != nullptr) {
    gradients_->Add(partitions_[static_cast<size_t>(header.partition)], header.step,
                    header.attempt);
  }
  const absl::Time end = options_.clock->Now();
  metrics_.push_duration.Observe(absl::ToDoubleSeconds(end - start));
  if (verdict.code == absl::StatusCode::kOk && !verdict.applied_before) {
    spans_.AddPush(header.step, header.attempt, client.name, header.partition, start, end);
  }
  return verdict;
}

}  // namespace shoal::server
