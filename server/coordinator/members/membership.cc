#include "server/coordinator/members/membership.h"

#include <algorithm>
#include <functional>

#include "core/base/status.h"
#include "core/base/testing/planted.h"

namespace shoal::server {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr int kMaxGpus = 64;  // of a host
// Of a member, which holds one: until the coordinator hears that the one before is gone.
constexpr int kMaxConnections = 8;
// The low bits of an incarnation are a durable count, so that none repeats in this or a later life
// of the coordinator; the high bits are random, so that another coordinator's is never taken for
// one of ours.
constexpr int kCountBits = 24;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;

int64_t CountOf(uint64_t incarnation) { return static_cast<int64_t>(incarnation & kCountMask); }

rpc::Token CommandTokenOf(const proto::RegisterRequest& request) {
  auto token = rpc::Token::Create(request.command_token());
  return token.ok() ? *std::move(token) : rpc::Token();
}

Member MakeMember(const proto::RegisterRequest& request, int index, uint64_t incarnation) {
  return {.role = request.role(),
          .index = index,
          .incarnation = incarnation,
          .address = request.address(),
          .host = request.host(),
          .pid = request.pid(),
          .facts = request.facts(),
          .free_memory_bytes = request.free_memory_bytes(),
          .metrics_port = request.metrics_port(),
          .version = request.version(),
          .nonce = request.nonce(),
          .command_token = CommandTokenOf(request),
          .stays = request.stays(),
          .renewed = absl::InfinitePast(),
          .lease = absl::ZeroDuration()};
}

// Which one process has at a time.
bool SamePlace(const Member& a, const Member& b) {
  return a.role == b.role &&
         (a.index == b.index || (a.role == proto::ROLE_SERVER && a.address == b.address));
}

// Short enough for a line of each member in a run's record.
absl::Status Check(const proto::HostFacts& facts) {
  std::vector<const std::string*> texts = {&facts.kernel(), &facts.cpu(), &facts.build(),
                                           &facts.instructions(), &facts.gpu()};
  for (const std::string& gpu : facts.gpus()) {
    texts.push_back(&gpu);
  }
  const bool long_text = std::ranges::any_of(
      texts, [](const std::string* text) { return text->size() > kMaxNameBytes; });
  if (long_text || facts.gpus_size() > kMaxGpus || facts.cores() < 0 || facts.memory_bytes() < 0) {
    return InvalidArgument(
        "facts of the host have a text longer than {} bytes, more than {} GPUs or a negative "
        "number",
        kMaxNameBytes, kMaxGpus);
  }
  return absl::OkStatus();
}

absl::Status CheckVersion(proto::Role role, const std::string& has, const std::string& version) {
  return has == version ? absl::OkStatus()
                        : FailedPrecondition(
                              "this {} has version '{}', the coordinator '{}': install the same "
                              "version everywhere",
                              RoleName(role), has, version);
}

absl::Status Check(const proto::RegisterRequest& request, const std::string& version) {
  SHOAL_RETURN_IF_ERROR(CheckVersion(request.role(), request.version(), version));
  if (request.role() != proto::ROLE_SERVER && request.role() != proto::ROLE_WORKER) {
    return InvalidArgument("role {} is neither server nor worker",
                           static_cast<int>(request.role()));
  }
  if (request.role() == proto::ROLE_SERVER && request.address().empty()) {
    return InvalidArgument("a server must register with the address of its service");
  }
  if (request.has_index() && (request.index() < 0 || request.index() >= kMaxMembers)) {
    return InvalidArgument("index {} is not one from 0 to {}", request.index(), kMaxMembers - 1);
  }
  if (request.address().size() > kMaxNameBytes || request.host().size() > kMaxNameBytes) {
    return InvalidArgument("address or host is longer than {} bytes", kMaxNameBytes);
  }
  if (request.free_memory_bytes() < 0) {
    return InvalidArgument("{} bytes of free memory", request.free_memory_bytes());
  }
  if (request.metrics_port() < 0 || request.metrics_port() > 65535) {
    return InvalidArgument("metrics at port {}", request.metrics_port());
  }
  if (!request.command_token().empty() &&
      (request.command_token().size() > kMaxNameBytes || CommandTokenOf(request).empty())) {
    return InvalidArgument("a command token that calls cannot carry");
  }
  return Check(request.facts());
}

}  // namespace

const char* RoleName(proto::Role role) {
  switch (role) {
    case proto::ROLE_SERVER:
      return "server";
    case proto::ROLE_WORKER:
      return "worker";
    default:
      return "process";
  }
}

std::string NameOf(const Member& member) {
  return fmt::format("{} {} (host {}, pid {})", RoleName(member.role), member.index, member.host,
                     member.pid);
}

proto::SavedMember ToSaved(const Member& member) {
  proto::SavedMember saved;
  saved.set_incarnation(member.incarnation);
  saved.set_index(member.index);
  proto::RegisterRequest& registered = *saved.mutable_registered();
  registered.set_role(member.role);
  registered.set_address(member.address);
  registered.set_host(member.host);
  registered.set_pid(member.pid);
  *registered.mutable_facts() = member.facts;
  registered.set_free_memory_bytes(member.free_memory_bytes);
  registered.set_metrics_port(member.metrics_port);
  registered.set_version(member.version);
  registered.set_nonce(member.nonce);
  registered.set_command_token(member.command_token.secret());
  registered.set_stays(member.stays);
  saved.set_drained(member.drained);
  return saved;
}

Member FromSaved(const proto::SavedMember& saved) {
  Member member = MakeMember(saved.registered(), saved.index(), saved.incarnation());
  member.leaving = member.drained = saved.drained();
  return member;
}

absl::Time LeaseEnd(const Member& member) {
  return std::min(member.renewed + member.lease, member.cut_off + kComeBackWithin);
}

Membership::Membership(const MembershipOptions& options)
    : options_(options), random_(options.seed), issued_(options.issued) {}

absl::StatusOr<Member> Membership::Register(const proto::RegisterRequest& request, absl::Time now) {
  SHOAL_RETURN_IF_ERROR(Check(request, options_.version));
  if (request.nonce() != 0) {
    for (auto& [incarnation, member] : members_) {
      if (member.nonce == request.nonce() && member.role == request.role()) {
        member.renewed = now;
        member.lease = options_.lease;
        OnAltered(member);
        return member;
      }
    }
  }
  if (members_.size() >= static_cast<size_t>(kMaxMembers)) {
    return ResourceExhausted("there are {} members already, no more are taken", members_.size());
  }
  uint64_t incarnation = 0;
  if (request.has_earlier()) {
    SHOAL_RETURN_IF_ERROR(CheckEarlier(request));
    incarnation = request.earlier().incarnation();
  }
  SHOAL_ASSIGN_OR_RETURN(const int index, IndexFor(request));
  if (request.has_earlier()) {
    came_back_.insert(incarnation);
    issued_ = std::max(issued_, CountOf(incarnation));
  } else {
    incarnation = NewIncarnation();
  }
  Member member = MakeMember(request, index, incarnation);
  member.renewed = now;
  member.lease = options_.lease;
  return Put(std::move(member));
}

absl::Status Membership::CheckEarlier(const proto::RegisterRequest& request) const {
  const proto::Membership& earlier = request.earlier();
  if (earlier.cluster() != options_.cluster) {
    return FailedPrecondition(
        "this {} is a member of another cluster, or of this one before it lost its --state: it is "
        "none here, and must begin anew",
        RoleName(request.role()));
  }
  if (earlier.term() >= options_.term || !MayComeBack(earlier.incarnation())) {
    return NotFound("incarnation {:016x} is a member no more: its lease is over",
                    earlier.incarnation());
  }
  return absl::OkStatus();
}

bool Membership::MayComeBack(uint64_t incarnation) const {
  return options_.term > 1 && CountOf(incarnation) > options_.issued &&
         !came_back_.contains(incarnation);
}

std::vector<Member> Membership::Restore(const std::vector<proto::SavedMember>& saved,
                                        absl::Time now) {
  std::vector<Member> newest_first;
  for (const proto::SavedMember& member : saved) {
    newest_first.push_back(FromSaved(member));
  }
  std::ranges::sort(newest_first, std::greater(),
                    [](const Member& member) { return CountOf(member.incarnation); });
  std::vector<Member> none;
  for (Member& member : newest_first) {
    const auto later = [&](const auto& other) { return SamePlace(other.second, member); };
    const absl::Status version = CheckVersion(member.role, member.version, options_.version);
    if (!version.ok()) {
      refused_[member.incarnation] = version;
    }
    if (!version.ok() || std::ranges::any_of(members_, later)) {
      none.push_back(std::move(member));
      continue;
    }
    member.renewed = now;
    member.lease = options_.lease;
    Put(std::move(member));
  }
  return none;
}

Member& Membership::Put(Member member) {
  OnAltered(member);
  return members_[member.incarnation] = std::move(member);
}

// Members renew with each call, so that it costs next to nothing; when the time has come all are
// looked at (TakeExpired).
void Membership::OnAltered(const Member& member) {
  next_expiry_ = std::min(next_expiry_, LeaseEnd(member));
}

absl::Status Membership::CheckMember(uint64_t incarnation) const {
  if (members_.contains(incarnation)) {
    return absl::OkStatus();
  }
  const auto refused = refused_.find(incarnation);
  return refused != refused_.end()
             ? refused->second
             : NotFound(
                   "incarnation {:016x} is not a member: its lease is over, or the coordinator has "
                   "no record of it",
                   incarnation);
}

absl::Status Membership::Renew(uint64_t incarnation, absl::Time now) {
  SHOAL_RETURN_IF_ERROR(CheckMember(incarnation));
  Member& member = members_.at(incarnation);
  member.renewed = std::max(member.renewed, now);
  member.lease = options_.lease;
  OnAltered(member);
  return absl::OkStatus();
}

void Membership::OnRenewed(uint64_t incarnation) {
  if (const auto found = members_.find(incarnation); found != members_.end()) {
    found->second.cut_off = absl::InfiniteFuture();
  }
}

absl::Status Membership::OnConnected(uint64_t incarnation) {
  SHOAL_RETURN_IF_ERROR(CheckMember(incarnation));
  Member& member = members_.at(incarnation);
  if (member.connections == kMaxConnections) {
    return ResourceExhausted("{} holds {} connections already", NameOf(member), member.connections);
  }
  ++member.connections;
  member.cut_off = absl::InfiniteFuture();
  return absl::OkStatus();
}

void Membership::OnDisconnected(uint64_t incarnation, absl::Time now) {
  const auto found = members_.find(incarnation);
  if (found != members_.end() && found->second.connections > 0 &&
      --found->second.connections == 0) {
    found->second.cut_off = now;
    OnAltered(found->second);
  }
}

std::optional<Member> Membership::Remove(uint64_t incarnation) {
  const auto found = members_.find(incarnation);
  if (found == members_.end()) {
    return std::nullopt;
  }
  Member member = std::move(found->second);
  members_.erase(found);
  return member;
}

void Membership::Undo(uint64_t incarnation) {
  Remove(incarnation);
  came_back_.erase(incarnation);
}

std::optional<Member> Membership::MarkLeaving(uint64_t incarnation) {
  const auto found = members_.find(incarnation);
  if (found == members_.end() || std::exchange(found->second.leaving, true)) {
    return std::nullopt;
  }
  return found->second;
}

Member Membership::SetDrained(uint64_t incarnation, bool drained) {
  Member& member = members_.at(incarnation);
  member.leaving = member.drained = drained;
  return member;
}

void Membership::ExtendLeases(absl::Duration by) {
  for (auto& [incarnation, member] : members_) {
    member.renewed += by;
    member.cut_off += by;
  }
}

std::vector<Member> Membership::TakeExpired(absl::Time now) {
  std::vector<Member> expired;
  if (now < next_expiry_) {
    return expired;
  }
  next_expiry_ = absl::InfiniteFuture();
  for (auto member = members_.begin(); member != members_.end();) {
    if (LeaseEnd(member->second) <= now) {
      expired.push_back(std::move(member->second));
      member = members_.erase(member);
    } else {
      OnAltered((member++)->second);
    }
  }
  return expired;
}

const Member* Membership::Find(uint64_t incarnation) const {
  const auto found = members_.find(incarnation);
  return found == members_.end() ? nullptr : &found->second;
}

std::vector<Member> Membership::members(proto::Role role) const {
  std::vector<Member> result;
  for (const auto& [incarnation, member] : members_) {
    if (member.role == role) {
      result.push_back(member);
    }
  }
  std::sort(result.begin(), result.end(),
            [](const Member& a, const Member& b) { return a.index < b.index; });
  return result;
}

absl::Duration Membership::OldestLease(proto::Role role, absl::Time now) const {
  absl::Duration oldest;
  for (const auto& [incarnation, member] : members_) {
    oldest = member.role == role ? std::max(oldest, now - member.renewed) : oldest;
  }
  return oldest;
}

absl::StatusOr<int> Membership::IndexFor(const proto::RegisterRequest& request) const {
  if (!request.has_index()) {
    return FreeIndex(request.role());
  }
  for (const auto& [incarnation, member] : members_) {
    if (member.role == request.role() && member.index == request.index()) {
      return request.takes_over()
                 ? Unavailable("{} is there still, until its lease ends", NameOf(member))
                 : FailedPrecondition("{} is there already; start this one with another --index",
                                      NameOf(member));
    }
  }
  return request.index();
}

const Member* Membership::HolderOf(const proto::RegisterRequest& request) const {
  const auto found = std::ranges::find_if(members_, [&request](const auto& entry) {
    const Member& member = entry.second;
    return member.role == request.role() && member.index == request.index();
  });
  return found == members_.end() ? nullptr : &found->second;
}

int Membership::FreeIndex(proto::Role role) const {
  std::vector<bool> taken(members_.size() + 1, false);  // at least one is free
  for (const auto& [incarnation, member] : members_) {
    if (member.role == role && static_cast<size_t>(member.index) < taken.size()) {
      taken[static_cast<size_t>(member.index)] = true;
    }
  }
  return static_cast<int>(std::find(taken.begin(), taken.end(), false) - taken.begin());
}

uint64_t Membership::NewIncarnation() {
  if (SHOAL_PLANTED("incarnation-again")) {
    return 0x1000 + members_.size();
  }
  ++issued_;
  return (random_.Next() & ~kCountMask) | (static_cast<uint64_t>(issued_) & kCountMask);
}

}  // namespace shoal::server
