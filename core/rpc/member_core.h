// Decides for a member of a cluster when it renews its lease, when it says again who it is, and
// when it is a member no more: answers in, operations out. A coordinator that cannot be reached is
// not a lost lease: it is waited for, as long as its answers said. Its next life knows the members
// by its record; where that has lost this one, the member registers once more as the one that it
// was.
//
// No clock, threads or I/O: MemberSession acts, tests and simulations drive it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rpc/newest_term.h"
#include "proto/coordinator.pb.h"

namespace shoal::rpc {

class MemberCore {
 public:
  enum class What {
    kRenew,
    kRegister,  // with earlier()
    kEnd,       // as end() says
  };

  MemberCore(const proto::RegisterReply& reply, absl::Time now);

  // What is to be done at next(), or later.
  What what() const;
  absl::Time next() const { return next_; }
  // How long an answer may take.
  absl::Duration deadline() const { return lease_ / 3; }
  // OK: there is nothing more for this member.
  const absl::Status& end() const { return *end_; }
  proto::Membership earlier() const;

  // The answer to what was asked at `asked`. An error: it was none, and is asked for again.
  absl::Status OnRenewed(const absl::StatusOr<proto::RenewLeaseReply>& reply, absl::Time asked,
                         absl::Time now);
  absl::Status OnRegistered(const absl::StatusOr<proto::RegisterReply>& reply, absl::Time asked,
                            absl::Time now);

 private:
  void OnKept(double lease_seconds, double patience_seconds, absl::Time asked, absl::Time now);
  absl::Status OnNoAnswer(const absl::Status& status, absl::Time now);

  const uint64_t incarnation_;
  const uint64_t cluster_;
  NewestTerm newest_term_;
  int64_t term_;
  absl::Duration lease_;
  absl::Duration patience_;
  absl::Time renewed_;
  absl::Time next_;
  bool unknown_ = false;  // to the coordinator
  std::optional<absl::Status> end_;
};

}  // namespace shoal::rpc
