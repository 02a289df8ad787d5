// Members: servers and workers with their index within the role, incarnation (unique to one life of
// one process) and lease. A member that leaves, or whose lease is over, is returned once and
// forgotten; its incarnation is refused from then on.
//
// Members of earlier lives of the coordinator are members still, by its record (Restore). One that
// the record has lost may say what it was when it registers (proto Membership).
//
// No clock, threads or I/O: the caller passes the time and guards access.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/random.h"
#include "core/rpc/token.h"
#include "proto/coordinator.pb.h"
#include "proto/state.pb.h"

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
  int metrics_port = 0;           // at the host of its address; 0: none
  std::string version;            // of its program
  uint64_t nonce = 0;
  rpc::Token command_token;  // of a server: what commands to it show; empty: the job's token
  bool stays = false;        // takes another job when one is over
  bool leaving = false;      // takes none from now on
  bool drained = false;      // and is told to go once it has none
  absl::Time renewed;
  int connections = 0;  // that it holds
  // When the last of them broke, and it is not back since.
  absl::Time cut_off = absl::InfiniteFuture();
  absl::Duration lease;  // as it was told last, so that a change of the lease never ends one that
                         // is being kept
};

// "worker 1 (host build-7, pid 4242)": a member's name in every message.
std::string NameOf(const Member& member);
// "server" or "worker".
const char* RoleName(proto::Role role);

// Who is cut off has so long to be back: a process that is there connects anew at once.
inline constexpr absl::Duration kComeBackWithin = absl::Seconds(1);
// Decides on a lease: from when on the member is lost, if it does not come back or renew before.
absl::Time LeaseEnd(const Member& member);

struct MembershipOptions {
  std::string version;  // that members must have
  absl::Duration lease = absl::Seconds(10);
  uint64_t seed = 0;  // of the random part of incarnations
  // Of earlier lives of this coordinator (StateStore): incarnations that they gave, the name of
  // their state, and this life's term.
  int64_t issued = 0;
  uint64_t cluster = 0;
  int64_t term = 1;
};

// What the coordinator's record keeps of a member.
proto::SavedMember ToSaved(const Member& member);
Member FromSaved(const proto::SavedMember& saved);

class Membership {
 public:
  explicit Membership(const MembershipOptions& options);

  // Those of earlier lives, whose leases begin now. Returns those that are none any more: a later
  // one has their index, or is a server at their address, and they were not taken from the record;
  // or they have another version, as they are told when they next renew their lease.
  std::vector<Member> Restore(const std::vector<proto::SavedMember>& saved, absl::Time now);
  // FailedPrecondition for another version, an index that is taken (Unavailable, if the request
  // takes it over) or who was a member elsewhere, InvalidArgument for a bad request,
  // ResourceExhausted for too many, NotFound for who was a member and is none any more.
  absl::StatusOr<Member> Register(const proto::RegisterRequest& request, absl::Time now);
  // NotFound if the incarnation is not (or no longer) a member's, FailedPrecondition if it was one
  // of another version.
  absl::Status Renew(uint64_t incarnation, absl::Time now);
  absl::Status CheckMember(uint64_t incarnation) const;
  // Whether an earlier life may have given it without a record, and it has not come back yet.
  bool MayComeBack(uint64_t incarnation) const;
  // It holds a connection from now on, or holds it no longer: without any it is cut off, until it
  // connects again or asks for its renewal itself. Errors as Renew's, ResourceExhausted for too
  // many.
  absl::Status OnConnected(uint64_t incarnation);
  void OnDisconnected(uint64_t incarnation, absl::Time now);
  void OnRenewed(uint64_t incarnation);
  // Takes back a registration that could not be recorded: it may come again.
  void Undo(uint64_t incarnation);
  std::optional<Member> Remove(uint64_t incarnation);
  // Returns the member, unless it was leaving before or is none.
  std::optional<Member> MarkLeaving(uint64_t incarnation);
  // By wish, or it stays after all.
  Member SetDrained(uint64_t incarnation, bool drained);
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
  // No lease ends before that.
  absl::Time NextExpiry() const { return next_expiry_; }
  // How long ago the member of that role renewed that has not for longest; zero without members.
  absl::Duration OldestLease(proto::Role role, absl::Time now) const;
  int64_t issued() const { return issued_; }
  // The lease that members get from now on when they register or renew.
  absl::Duration lease() const { return options_.lease; }
  const std::string& version() const { return options_.version; }
  void set_lease(absl::Duration lease) { options_.lease = lease; }

 private:
  absl::StatusOr<int> IndexFor(const proto::RegisterRequest& request) const;
  int FreeIndex(proto::Role role) const;
  uint64_t NewIncarnation();
  absl::Status CheckEarlier(const proto::RegisterRequest& request) const;
  Member& Put(Member member);
  // What decides when its lease ends has changed.
  void OnAltered(const Member& member);

  MembershipOptions options_;
  Random random_;
  int64_t issued_;
  std::map<uint64_t, Member> members_;  // by incarnation
  absl::Time next_expiry_ = absl::InfiniteFuture();
  std::set<uint64_t> came_back_;              // without a record
  std::map<uint64_t, absl::Status> refused_;  // of earlier lives, by incarnation: why
};

}  // namespace shoal::server
