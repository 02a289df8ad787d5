// HostedJob::TakePush: judges, applies and counts a client's push.
#include "core/base/status.h"
#include "core/transport/push_header.h"
#include "server/service/hosted_job.h"

namespace shoal::server {

PushVerdict HostedJob::TakePush(const ClientIdentity& client, const transport::PushHeader& header,
                                const PushPayload& payload) {
  const absl::Time start = options_.clock->Now();
  PushVerdict verdict;
  {
    absl::ReaderMutexLock lock(&state_mutex_);
    verdict = JudgePush(client, header, payload);
    if (verdict.code != absl::StatusCode::kOk) {
      refused_pushes_.Warn([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return fmt::format(
            "push of {} is refused with {}: partition {} step {} attempt {} key {} generation "
            "{}; {}",
            client.name, absl::StatusCodeToString(verdict.code), header.partition, header.step,
            header.attempt, header.key, header.generation,
            verdict.code == absl::StatusCode::kDataLoss
                ? "its payload is not what was sent, which is sent again over a new connection"
                : state_.Describe());
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

PushVerdict HostedJob::JudgePush(const ClientIdentity& client, const transport::PushHeader& header,
                                 const PushPayload& payload) {
  using absl::StatusCode;
  if (header.incarnation != client.incarnation || fenced_.contains(client.incarnation)) {
    return {.code = StatusCode::kPermissionDenied};
  }
  if (header.generation != state_.generation()) {
    return {.code = StatusCode::kFailedPrecondition};
  }
  const auto partitions = static_cast<int64_t>(shard_map_.servers.size());
  if (header.partition < 0 || header.partition >= partitions || header.key < 1 ||
      header.dtype != static_cast<uint32_t>(job_.service.gradient_type)) {
    return {.code = StatusCode::kInvalidArgument};
  }
  Partition* const partition = store_->Find(header.partition);
  if (partition == nullptr) {
    return {.code = StatusCode::kNotFound};
  }
  const auto bytes =
      static_cast<size_t>(partition->spec().count * SizeOf(job_.service.gradient_type));
  if (header.count != partition->spec().count || bytes > payload.bytes.size()) {
    return {.code = StatusCode::kInvalidArgument};
  }
  if (!state_.IsCurrentAttempt(header.step, header.attempt)) {
    return {.code = StatusCode::kFailedPrecondition};
  }
  if (!state_.TakesPushes()) {
    // Sealed, but still recognises earlier pushes.
    return partition->Contains(header.key) ? PushVerdict{.applied_before = true}
                                           : PushVerdict{.code = StatusCode::kFailedPrecondition};
  }
  if (payload.place == PayloadMemory::kHost &&
      !transport::Matches(header, payload.bytes.first(bytes))) {
    return {.code = StatusCode::kDataLoss};
  }
  const Partition::PushOutcome outcome = partition->ApplyPush(
      header.key, job_.service.gradient_type, payload.bytes.data(), payload.place);
  return {.code = outcome.code, .applied_before = outcome.applied_before};
}

}  // namespace shoal::server
