#include "worker/trainer/lease_keeper.h"

#include "common/logging.h"
#include "common/status.h"

namespace shoal::worker {

LeaseKeeper::LeaseKeeper(CoordinatorPort* coordinator, uint64_t incarnation, absl::Duration lease,
                         std::function<void(const absl::Status&)> on_end, Clock& clock)
    : coordinator_(coordinator),
      incarnation_(incarnation),
      lease_(lease),
      on_end_(std::move(on_end)),
      clock_(clock),
      valid_until_(clock.Now() + lease),
      thread_([this] { Run(); }) {}

LeaseKeeper::~LeaseKeeper() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void LeaseKeeper::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), lease_ / 3);
      if (stopping_) {
        return;
      }
    }
    if (Renew()) {
      return;
    }
  }
}

bool LeaseKeeper::Renew() {
  proto::RenewLeaseRequest request;
  request.set_incarnation(incarnation_);
  const absl::Time asked = clock_.Now();
  const auto reply = coordinator_->RenewLease(request);
  if (reply.ok()) {
    valid_until_ = asked + lease_;
    if (reply->shut_down()) {
      on_end_(absl::OkStatus());
    }
    return reply->shut_down();
  }
  const bool unreachable = absl::IsUnavailable(reply.status()) ||
                           absl::IsDeadlineExceeded(reply.status());
  if (unreachable && clock_.Now() < valid_until_) {
    LogWarning("the lease could not be renewed ({}); trying again", Message(reply.status()));
    return false;
  }
  on_end_(unreachable ? Unavailable("the coordinator could not be reached for {}: {}",
                                    absl::FormatDuration(lease_), Message(reply.status()))
                      : Annotate(reply.status(), "the lease is lost"));
  return true;
}

}  // namespace shoal::worker
