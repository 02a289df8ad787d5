#include "server/service/parameter_service.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::server {

ParameterService::ParameterService(ParameterServiceOptions options, Metrics* metrics)
    : options_(std::move(options)), metrics_(*metrics) {
  SHOAL_CHECK(options_.create_transport != nullptr && options_.available_memory != nullptr);
}

ParameterService::~ParameterService() {
  std::unique_ptr<Configuration> configuration;
  {
    absl::MutexLock commands(&commands_mutex_);
    absl::MutexLock state(&state_mutex_);
    active_ = nullptr;
    configuration = std::move(configuration_);
  }
  // Ends the intake's threads, whose pushes find no active configuration any more.
}

void ParameterService::Count(const char* operation, absl::Time start, const absl::Status& status) {
  metrics_.CountRequest(operation, status.code(), options_.clock->Now() - start);
  if (!status.ok()) {
    LogWarning("{} refused: {}", operation, Message(status));
  }
}

absl::StatusOr<proto::ConfigureReply> ParameterService::Configure(
    const proto::ConfigureRequest& request) {
  return Counted<proto::ConfigureReply>("configure", [&] {
    absl::MutexLock lock(&commands_mutex_);
    return ConfigureLocked(request);
  });
}

absl::StatusOr<proto::BeginAttemptReply> ParameterService::BeginAttempt(
    const proto::BeginAttemptRequest& request) {
  return Counted<proto::BeginAttemptReply>(
      "begin_attempt", [&]() -> absl::StatusOr<proto::BeginAttemptReply> {
        absl::MutexLock commands(&commands_mutex_);
        // Waits for pushes that are being applied, and keeps others out while accumulators are
        // cleared.
        absl::MutexLock state(&state_mutex_);
        SHOAL_ASSIGN_OR_RETURN(
            const Decision decision,
            state_.BeginAttempt(request.step(), request.attempt(), request.generation()));
        if (decision == Decision::kExecute) {
          SHOAL_RETURN_IF_ERROR(active_->store->failure());
          active_->store->Clear();
          state_.Opened(request.step(), request.attempt());
          active_->intake->BeginMeetings(request.step(), request.attempt(),
                                         {request.meeting().begin(), request.meeting().end()});
          LogDebug("step {} attempt {}: open", request.step(), request.attempt());
        }
        return proto::BeginAttemptReply();
      });
}

absl::StatusOr<proto::PrepareReply> ParameterService::Prepare(
    const proto::PrepareRequest& request) {
  return Counted<proto::PrepareReply>("prepare", [&]() -> absl::StatusOr<proto::PrepareReply> {
    absl::MutexLock commands(&commands_mutex_);
    {
      // Waits for pushes that are being applied; those that come later find the attempt sealed.
      absl::MutexLock state(&state_mutex_);
      SHOAL_ASSIGN_OR_RETURN(const Decision decision,
                             state_.Prepare(request.step(), request.attempt()));
      if (decision == Decision::kRepeat) {
        return prepared_;
      }
      state_.Sealed();
    }
    Store& store = *configuration_->store;
    prepared_.Clear();
    auto sealed = store.Seal();
    if (!sealed.ok()) {
      // No later Prepare of this attempt may be answered as the first was.
      absl::MutexLock state(&state_mutex_);
      state_.SealingFailed();
      return Annotate(sealed.status(), fmt::format("step {}: adding gradients", request.step()));
    }
    for (const PartitionStatistics& statistics : *sealed) {
      proto::PartitionGradient& partition = *prepared_.add_partitions();
      partition.set_partition(statistics.partition);
      partition.set_sum_of_squares(statistics.gradient.sum_of_squares);
      partition.set_non_finite(statistics.gradient.non_finite);
    }
    for (const auto& [incarnation, count] : store.PushCounts()) {
      proto::ClientPushes& client = *prepared_.add_clients();
      client.set_incarnation(incarnation);
      client.set_pushes(count.pushes);
      client.set_duplicates(count.duplicates);
    }
    LogDebug("step {} attempt {}: sealed with pushes of {} workers", request.step(),
             request.attempt(), prepared_.clients_size());
    return prepared_;
  });
}

absl::StatusOr<proto::CommitReply> ParameterService::Commit(const proto::CommitRequest& request) {
  return Counted<proto::CommitReply>("commit", [&]() -> absl::StatusOr<proto::CommitReply> {
    absl::MutexLock commands(&commands_mutex_);
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
    absl::MutexLock state(&state_mutex_);
    state_.Committed();
    metrics_.version.Set(static_cast<double>(request.step()));
    LogDebug("step {} attempt {}: committed", request.step(), request.attempt());
    return reply;
  });
}

absl::StatusOr<proto::GetChecksumsReply> ParameterService::GetChecksums(
    const proto::GetChecksumsRequest&) {
  return Counted<proto::GetChecksumsReply>(
      "get_checksums", [&]() -> absl::StatusOr<proto::GetChecksumsReply> {
        absl::MutexLock commands(&commands_mutex_);
        if (configuration_ == nullptr) {
          return FailedPrecondition("this server is not configured");
        }
        proto::GetChecksumsReply reply;
        reply.set_version(configuration_->store->version());
        SHOAL_ASSIGN_OR_RETURN(const std::vector<PartitionChecksum> checksums,
                               configuration_->store->Checksums());
        for (const PartitionChecksum& checksum : checksums) {
          proto::PartitionChecksum& partition = *reply.add_partitions();
          partition.set_partition(checksum.partition);
          partition.set_hash(checksum.hash);
        }
        return reply;
      });
}

absl::StatusOr<proto::FenceClientReply> ParameterService::FenceClient(
    const proto::FenceClientRequest& request) {
  return Counted<proto::FenceClientReply>(
      "fence_client", [&]() -> absl::StatusOr<proto::FenceClientReply> {
        PushIntake* intake = nullptr;
        {
          // Waits for its pushes that are being applied; later ones are refused.
          absl::MutexLock state(&state_mutex_);
          if (fenced_.insert(request.incarnation()).second) {
            LogWarning("incarnation {:x} is fenced: its lease is over", request.incarnation());
          }
          intake = active_ == nullptr ? nullptr : active_->intake.get();
        }
        if (intake != nullptr) {
          intake->Remove(request.incarnation());
        }
        return proto::FenceClientReply();
      });
}

PushVerdict ParameterService::TakePush(const ClientIdentity& client,
                                       const transport::PushHeader& header,
                                       const PushPayload& payload) {
  const absl::Time start = options_.clock->Now();
  PushVerdict verdict;
  {
    absl::ReaderMutexLock lock(&state_mutex_);
    verdict = JudgePush(client, header, payload);
    if (verdict.code != absl::StatusCode::kOk) {
      refused_pushes_.Warn([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return fmt::format(
            "push of {} is refused with {}: partition {} step {} attempt {} sequence {} generation "
            "{}; {}",
            client.name, absl::StatusCodeToString(verdict.code), header.partition, header.step,
            header.attempt, header.sequence, header.generation, state_.Describe());
      });
    }
  }
  if (verdict.code != absl::StatusCode::kOk) {
    metrics_.CountRequest("push", verdict.code);
  } else {
    (verdict.applied_before ? metrics_.duplicate_pushes : metrics_.applied_pushes).Increment();
  }
  metrics_.push_duration.Observe(absl::ToDoubleSeconds(options_.clock->Now() - start));
  return verdict;
}

PushVerdict ParameterService::JudgePush(const ClientIdentity& client,
                                        const transport::PushHeader& header,
                                        const PushPayload& payload) {
  using absl::StatusCode;
  if (header.incarnation != client.incarnation || fenced_.contains(client.incarnation)) {
    return {.code = StatusCode::kPermissionDenied};
  }
  if (active_ == nullptr || header.generation != state_.generation()) {
    return {.code = StatusCode::kFailedPrecondition};
  }
  const auto partitions = static_cast<int64_t>(active_->shard_map.servers.size());
  if (header.partition < 0 || header.partition >= partitions || header.sequence < 1 ||
      header.dtype != static_cast<uint32_t>(active_->job.service.gradient_type)) {
    return {.code = StatusCode::kInvalidArgument};
  }
  Partition* const partition = active_->store->Find(header.partition);
  if (partition == nullptr) {
    return {.code = StatusCode::kNotFound};
  }
  const auto bytes =
      static_cast<size_t>(partition->spec().count * SizeOf(active_->job.service.gradient_type));
  if (header.count != partition->spec().count || bytes > payload.bytes.size()) {
    return {.code = StatusCode::kInvalidArgument};
  }
  if (!state_.IsCurrentAttempt(header.step, header.attempt)) {
    return {.code = StatusCode::kFailedPrecondition};
  }
  if (!state_.TakesPushes()) {
    // Sealed: what was taken before is still known.
    return partition->CountIfApplied(client.incarnation, header.sequence)
               ? PushVerdict{.applied_before = true}
               : PushVerdict{.code = StatusCode::kFailedPrecondition};
  }
  const Partition::PushOutcome outcome =
      partition->ApplyPush(client.incarnation, header.sequence, active_->job.service.gradient_type,
                           payload.bytes.data(), payload.place);
  return {.code = outcome.code, .applied_before = outcome.applied_before};
}

}  // namespace shoal::server
