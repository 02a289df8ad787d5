#include "worker/peers/rendezvous.h"

#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

// Between calls to a peer that does not answer yet.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
constexpr absl::Duration kNoticeAfter = absl::Seconds(10);
// Of why a worker cannot take part.
constexpr size_t kLongestReason = 1000;

// Whether the first of them is to come yet: it does not answer, or has what came before, which it
// leaves: other peers, or another job. Where it never comes, the job goes on with others, and
// somebody cancels.
bool ComesYet(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsPermissionDenied(status) || absl::IsNotFound(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> OpenCollectives(const Device* gpu,
                                                             const CollectivesOpener& open) {
  if (gpu == nullptr) {
    return absl::UnavailableError("it computes on the CPU");
  }
  return open ? open(*gpu) : absl::UnavailableError("this build is without NCCL's nccl.h");
}

proto::JoinRendezvousRequest Rendezvous::RequestFor(const StepAttempt& attempt,
                                                    int64_t generation) const {
  const WorkerGroup& peers = options_.peers;
  proto::JoinRendezvousRequest request;
  request.set_job_id(peers.job_id);
  request.set_incarnation(peers.workers[static_cast<size_t>(rank())].incarnation);
  request.set_peer(peers.workers[0].incarnation);
  request.set_rank(rank());
  request.set_peers(ranks());
  request.set_step(attempt.step);
  request.set_attempt(attempt.attempt);
  request.set_generation(generation);
  if (options_.collectives != nullptr) {
    request.set_gpu(options_.collectives->gpu());
    request.set_version(options_.collectives->version());
  }
  request.set_on_gpu(options_.on_gpu);
  request.set_unavailable(options_.unavailable.substr(0, kLongestReason));
  return request;
}

absl::StatusOr<proto::JoinRendezvousReply> Rendezvous::Join(
    const StepAttempt& attempt, int64_t generation, const std::function<absl::Status()>& check) {
  const proto::JoinRendezvousRequest request = RequestFor(attempt, generation);
  const absl::Time deadline = RealClock().Now() + options_.timeout;
  absl::Time notice = RealClock().Now() + kNoticeAfter;
  const Cancellation::Listener ends(options_.cancellation, [this](const absl::Status& why) {
    options_.service->Close(why);
    options_.client->Cancel();
  });
  while (true) {
    absl::StatusOr<proto::JoinRendezvousReply> reply =
        rank() == 0 ? options_.service->JoinRendezvous(request)
                    : options_.client->JoinRendezvous(0, request, options_.call_timeout);
    SHOAL_RETURN_IF_ERROR(options_.cancellation->status());
    if (!ComesYet(reply.status())) {
      return reply;
    }
    SHOAL_RETURN_IF_ERROR(check());
    if (RealClock().Now() >= deadline) {
      return DeadlineExceeded("not all {} workers met within {}: {}", ranks(),
                              absl::FormatDuration(options_.timeout), Message(reply.status()));
    }
    if (RealClock().Now() >= notice) {
      const WorkerGroup::Worker& first = options_.peers.workers[0];
      LogWarning("not all {} workers have met at {} ({}) yet, waiting until {}: {}", ranks(),
                 first.name, first.address,
                 absl::FormatTime("%H:%M:%S", deadline, absl::LocalTimeZone()),
                 Message(reply.status()));
      notice = deadline;  // once
    }
    absl::SleepFor(kRetryDelay);
  }
}

}  // namespace shoal::worker
