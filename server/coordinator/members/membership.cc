#include "server/coordinator/members/membership.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::server {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr int kMaxGpus = 64;  // of a host

// Short enough for a line of each member in a run's record.
absl::Status Check(const proto::HostFacts& facts) {
  std::vector<const std::string*> texts = {&facts.kernel(), &facts.cpu(), &facts.build()};
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

absl::Status Check(const proto::RegisterRequest& request, const std::string& version) {
  if (request.version() != version) {
    return FailedPrecondition(
        "this {} has version '{}', the coordinator '{}': install the same version everywhere",
        RoleName(request.role()), request.version(), version);
  }
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

bool LeaseIsOver(absl::Time renewed, absl::Time now, absl::Duration lease) {
  return now >= renewed + lease;
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
        return member;
      }
    }
  }
  if (members_.size() >= static_cast<size_t>(kMaxMembers)) {
    return ResourceExhausted("there are {} members already, no more are taken", members_.size());
  }
  SHOAL_ASSIGN_OR_RETURN(const int index, IndexFor(request));
  const Member member = {.role = request.role(),
                         .index = index,
                         .incarnation = NewIncarnation(),
                         .address = request.address(),
                         .host = request.host(),
                         .pid = request.pid(),
                         .facts = request.facts(),
                         .free_memory_bytes = request.free_memory_bytes(),
                         .nonce = request.nonce(),
                         .stays = request.stays(),
                         .renewed = now,
                         .lease = options_.lease};
  members_[member.incarnation] = member;
  return member;
}

absl::Status Membership::Renew(uint64_t incarnation, absl::Time now) {
  const auto found = members_.find(incarnation);
  if (found == members_.end()) {
    return NotFound(
        "incarnation {:016x} is not a member: its lease is over or the coordinator has been "
        "restarted; this process must end",
        incarnation);
  }
  found->second.renewed = std::max(found->second.renewed, now);
  found->second.lease = options_.lease;
  return absl::OkStatus();
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

std::optional<Member> Membership::MarkLeaving(uint64_t incarnation) {
  const auto found = members_.find(incarnation);
  if (found == members_.end() || std::exchange(found->second.leaving, true)) {
    return std::nullopt;
  }
  return found->second;
}

void Membership::ExtendLeases(absl::Duration by) {
  for (auto& [incarnation, member] : members_) {
    member.renewed += by;
  }
}

std::vector<Member> Membership::TakeExpired(absl::Time now) {
  std::vector<Member> expired;
  for (auto it = members_.begin(); it != members_.end();) {
    if (LeaseIsOver(it->second.renewed, now, it->second.lease)) {
      expired.push_back(std::move(it->second));
      it = members_.erase(it);
    } else {
      ++it;
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

absl::Time Membership::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [incarnation, member] : members_) {
    next = std::min(next, member.renewed + member.lease);
  }
  return next;
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
  // The low bits are a durable count, so no incarnation repeats in this or a later life of the
  // coordinator; the high bits are random, so another coordinator's is never taken for one of ours.
  constexpr int kCountBits = 24;
  constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
  ++issued_;
  return (random_.Next() & ~kCountMask) | (static_cast<uint64_t>(issued_) & kCountMask);
}

}  // namespace shoal::server
