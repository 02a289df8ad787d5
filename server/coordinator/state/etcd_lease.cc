#include "server/coordinator/state/etcd_lease.h"

#include <algorithm>

#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/coordinator/state/etcd_calls.h"

namespace shoal::server {
namespace {

absl::Status EndedByItself(absl::Duration length, const absl::Status& no_answer) {
  return Aborted(
      "the lease of {:g} s in etcd could not be renewed{}", absl::ToDoubleSeconds(length),
      no_answer.ok() ? ": this process stood still" : fmt::format(" ({})", Message(no_answer)));
}

}  // namespace

absl::StatusOr<EtcdLease::Granted> EtcdLease::Grant(rpc::Channel& etcd, absl::Duration length) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(std::max<int64_t>(1, absl::ToInt64Seconds(length)));
  const absl::Time asked = RealClock().Now();
  const auto reply = etcd.Call(&EtcdCalls::LeaseGrant, request, kEtcdCall);
  SHOAL_RETURN_IF_ERROR(WithRemedy(reply.status()));
  const absl::Duration granted = absl::Seconds(reply->ttl());
  return Granted{.id = reply->id(), .length = granted, .until = asked + granted};
}

void EtcdLease::Revoke(rpc::Channel& etcd, int64_t id) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(id);
  if (const absl::Status revoked = etcd.Call(&EtcdCalls::LeaseRevoke, request, kEtcdCall).status();
      !revoked.ok()) {
    LogDebug("a lease ends by itself: {}", Message(revoked));
  }
}

EtcdLease::EtcdLease(std::shared_ptr<rpc::Channel> etcd, const Granted& granted,
                     std::function<void(const absl::Status&)> lost)
    : etcd_(std::move(etcd)),
      id_(granted.id),
      lost_(std::move(lost)),
      length_(granted.length),
      until_(granted.until),
      next_(RealClock().Now()),
      thread_([this] { Keep(); }) {}

EtcdLease::~EtcdLease() {
  bool revoke = false;
  {
    absl::MutexLock lock(&mutex_);
    revoke = why_.ok();
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
  if (revoke) {
    Revoke(*etcd_, id_);
  }
}

absl::Status EtcdLease::CheckHeld() {
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    if (why_.ok() && RealClock().Now() < until_) {
      return absl::OkStatus();
    }
    why = why_.ok() ? EndedByItself(length_, no_answer_) : why_;
  }
  Lose(why);
  return why;
}

void EtcdLease::Lose(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (!why_.ok()) {
      while (!told_) {
        changed_.Wait(&mutex_, absl::InfiniteDuration());
      }
      return;
    }
    why_ = why;
    changed_.SignalAll();
  }
  lost_(why);
  absl::MutexLock lock(&mutex_);
  told_ = true;
  changed_.SignalAll();
}

void EtcdLease::Keep() {
  while (true) {
    absl::Status over;
    absl::Duration left;
    {
      absl::MutexLock lock(&mutex_);
      const absl::Time now = RealClock().Now();
      if (stopping_ || !why_.ok()) {
        return;
      }
      if (now < until_ && now < next_) {
        changed_.Wait(&mutex_, std::min(until_, next_) - now);
        continue;
      }
      left = until_ - now;
      over = left > absl::ZeroDuration() ? absl::OkStatus() : EndedByItself(length_, no_answer_);
    }
    over.ok() ? Renew(left) : Lose(over);
  }
}

void EtcdLease::Renew(absl::Duration left) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(id_);
  const absl::Time asked = RealClock().Now();
  const auto reply = etcd_->Call(&EtcdCalls::LeaseKeepAlive, request,
                                 {.deadline = std::min(kEtcdCall.deadline, left)});
  if (reply.ok() && reply->ttl() <= 0) {
    Lose(Aborted("its lease in etcd has ended"));
    return;
  }
  absl::MutexLock lock(&mutex_);
  no_answer_ = reply.status();
  if (reply.ok()) {
    length_ = absl::Seconds(reply->ttl());
    until_ = asked + length_;
  }
  next_ = RealClock().Now() + (reply.ok() ? length_ / 3 : kBetweenEtcdCalls);
}

}  // namespace shoal::server
