#include "core/rpc/member_core.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::rpc {
namespace {

// While the coordinator cannot be reached: its next life is to be found soon.
constexpr absl::Duration kLongestRetry = absl::Seconds(1);

bool IsNoAnswer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status) || absl::IsCancelled(status);
}

}  // namespace

MemberCore::MemberCore(const proto::RegisterReply& reply, absl::Time now)
    : incarnation_(reply.incarnation()), cluster_(reply.cluster()), term_(reply.term()) {
  newest_term_.Admit(reply.term(), "Register").IgnoreError();  // the first
  OnKept(reply.lease_seconds(), reply.coordinator_patience_seconds(), now, now);
}

MemberCore::What MemberCore::what() const {
  if (end_.has_value()) {
    return What::kEnd;
  }
  return unknown_ ? What::kRegister : What::kRenew;
}

proto::Membership MemberCore::earlier() const {
  proto::Membership membership;
  membership.set_cluster(cluster_);
  membership.set_incarnation(incarnation_);
  membership.set_term(term_);
  return membership;
}

absl::Status MemberCore::OnRenewed(const absl::StatusOr<proto::RenewLeaseReply>& reply,
                                   absl::Time asked, absl::Time now) {
  if (absl::IsNotFound(reply.status())) {
    unknown_ = true;
    next_ = now;
    return absl::OkStatus();
  }
  if (!reply.ok()) {
    return OnNoAnswer(reply.status(), now);
  }
  if (const absl::Status stale = newest_term_.Admit(reply->term(), "the coordinator's answer");
      !stale.ok()) {
    return OnNoAnswer(Unavailable("{}", Message(stale)), now);
  }
  term_ = reply->term();
  OnKept(reply->lease_seconds(), reply->coordinator_patience_seconds(), asked, now);
  if (reply->shut_down()) {
    end_ = absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status MemberCore::OnRegistered(const absl::StatusOr<proto::RegisterReply>& reply,
                                      absl::Time asked, absl::Time now) {
  if (!reply.ok()) {
    return OnNoAnswer(reply.status(), now);
  }
  unknown_ = false;
  term_ = reply->term();
  newest_term_.Admit(term_, "Register").IgnoreError();  // it knows its earlier lives' members
  OnKept(reply->lease_seconds(), reply->coordinator_patience_seconds(), asked, now);
  return absl::OkStatus();
}

void MemberCore::OnKept(double lease_seconds, double patience_seconds, absl::Time asked,
                        absl::Time now) {
  if (lease_seconds > 0) {
    lease_ = absl::Seconds(lease_seconds);
  }
  patience_ = std::max(lease_, absl::Seconds(patience_seconds));
  renewed_ = asked;
  next_ = now + lease_ / 3;  // three tries before the lease is over
}

absl::Status MemberCore::OnNoAnswer(const absl::Status& status, absl::Time now) {
  if (!IsNoAnswer(status) || now >= renewed_ + patience_) {
    end_ = status;
    return absl::OkStatus();
  }
  next_ = now + std::min(lease_ / 3, kLongestRetry);
  return status;
}

}  // namespace shoal::rpc
