// Members: servers and workers with their index within the role, incarnation (unique to one life of
// one process) and lease. A member that leaves, or whose lease is over, is returned once and
// forgotten; its incarnation is refused from then on.
//
// No clock, threads or I/O: the caller passes the time and guards access.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/random.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

// Each may keep one call waiting at the coordinator, and so one thread.
inline constexpr int kMaxMembers = 4096;

struct Member {
  proto::Role role = proto::ROLE_UNSPECIFIED;
  int index = 0;
  uint64_t incarnation = 0;
  std::string address;  // of its service
  std::string host;
  int64_t pid = 0;
  proto::HostFacts facts;
  int64_t free_memory_bytes = 0;  // of its host, for a job; 0: unknown
  uint64_t nonce = 0;
  bool stays = false;    // takes another job when one is over
  bool leaving = false;  // takes none from now on
  absl::Time renewed;
  absl::Duration lease;  // as it was told last, so that a change of the lease never ends one that
                         // is being kept
};

// "worker 1 (host build-7, pid 4242)": a member's name in every message.
std::string NameOf(const Member& member);
// "server" or "worker".
const char* RoleName(proto::Role role);

// Decides on a lease: a member that renewed at `renewed` is lost from renewed + lease on.
bool LeaseIsOver(absl::Time renewed, absl::Time now, absl::Duration lease);

struct MembershipOptions {
  std::string version;  // that members must have
  absl::Duration lease = absl::Seconds(10);
  uint64_t seed = 0;   // of the random part of incarnations
  int64_t issued = 0;  // incarnations given by earlier lives of this coordinator (StateStore)
};

class Membership {
 public:
  explicit Membership(const MembershipOptions& options);

  // FailedPrecondition for another version or an index that is taken (Unavailable, if the request
  // takes it over), InvalidArgument for a bad request, ResourceExhausted for too many.
  absl::StatusOr<Member> Register(const proto::RegisterRequest& request, absl::Time now);
  // NotFound if the incarnation is not (or no longer) a member's.
  absl::Status Renew(uint64_t incarnation, absl::Time now);
  std::optional<Member> Remove(uint64_t incarnation);
  // Returns the member, unless it was leaving before or is none.
  std::optional<Member> MarkLeaving(uint64_t incarnation);
  // As if all had renewed later by that much.
  void ExtendLeases(absl::Duration by);
  // Removes and returns the members whose lease is over at `now`.
  std::vector<Member> TakeExpired(absl::Time now);

  const Member* Find(uint64_t incarnation) const;
  // Who has the index that a request asks for; null: nobody.
  const Member* HolderOf(const proto::RegisterRequest& request) const;
  // In order of index.
  std::vector<Member> members(proto::Role role) const;
  size_t size() const { return members_.size(); }
  // When the next lease ends; InfiniteFuture without members.
  absl::Time NextExpiry() const;
  int64_t issued() const { return issued_; }
  // The lease that members get from now on when they register or renew.
  absl::Duration lease() const { return options_.lease; }
  void set_lease(absl::Duration lease) { options_.lease = lease; }

 private:
  absl::StatusOr<int> IndexFor(const proto::RegisterRequest& request) const;
  int FreeIndex(proto::Role role) const;
  uint64_t NewIncarnation();

  MembershipOptions options_;
  Random random_;
  int64_t issued_;
  std::map<uint64_t, Member> members_;  // by incarnation
};

}  // namespace shoal::server
