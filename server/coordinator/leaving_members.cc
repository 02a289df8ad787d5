// CoordinatorCore's members that go: who is told to, who asks to, and who is to wait for that.
#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/coordinator/coordinator_core.h"

namespace shoal::server {

// Whether there is nothing more for a member, which is to leave.
bool CoordinatorCore::IsDoneWith(uint64_t incarnation) const {
  const Member* member = members_.Find(incarnation);
  if (member != nullptr && member->drained && !IsHeld(incarnation)) {
    return true;
  }
  if (member != nullptr && member->stays) {
    return false;
  }
  return ended() || (JobOf(incarnation) == nullptr &&
                     std::ranges::any_of(jobs_, [incarnation](const auto& run) {
                       return run->TakesPart(incarnation);
                     }));
}

// Whether a job has not let go of it.
bool CoordinatorCore::IsHeld(uint64_t incarnation) const {
  return std::ranges::any_of(jobs_, [incarnation](const auto& run) {
    return !run->released() && run->TakesPart(incarnation);
  });
}

// Who has no job may get what it holds.
void CoordinatorCore::TellLeaving(JobRun& run, const Member& member, const std::string& why) {
  if (run.TakesPart(member.incarnation)) {
    run.OfferServers(FreeMembers(proto::ROLE_SERVER));
    run.OnLeaving(member, why);
  }
}

// Whether a member that asks to leave is to wait: a job has not let go of it.
bool CoordinatorCore::KeepsFromLeaving(const proto::LeaveRequest& request) {
  const std::string& why = request.reason();
  if (const auto member = members_.MarkLeaving(request.incarnation()); member.has_value()) {
    LogInfo("{} asks to leave: {}", NameOf(*member), why);
    for (const auto& run : jobs_) {
      TellLeaving(*run, *member, why);
    }
    OfferMembers();
  }
  return IsHeld(request.incarnation());
}

absl::StatusOr<proto::LeaveReply> CoordinatorCore::Leave(const proto::LeaveRequest& request) {
  if (request.when_free() && KeepsFromLeaving(request)) {
    proto::LeaveReply reply;
    reply.set_wait(true);
    return reply;
  }
  const std::optional<Member> member = Remove(request.incarnation());
  if (!member.has_value()) {
    return proto::LeaveReply();  // A repetition, or its lease was over.
  }
  environment_.reached("leaving");
  AddLog(*member, request.log());
  CountMembers();
  LogInfo("{} left{}{}", NameOf(*member), request.reason().empty() ? "" : ": ", request.reason());
  OnLost(*member,
         fmt::format("it left{}{}", request.reason().empty() ? "" : ": ", request.reason()));
  OfferMembers();
  return proto::LeaveReply();
}

absl::Status CoordinatorCore::SetDrained(uint64_t incarnation, bool drained) {
  return environment_.store.SaveMember(ToSaved(members_.SetDrained(incarnation, drained)),
                                       members_.issued());
}

absl::StatusOr<proto::ScaleReply> CoordinatorCore::Drain(const proto::ScaleRequest& request) {
  const std::vector<Member> servers = members_.members(proto::ROLE_SERVER);
  const auto found = std::ranges::find(servers, request.drain(), &Member::index);
  if (found == servers.end()) {
    return InvalidArgument("there is no server-{}: `shoal status` shows those that are there",
                           request.drain());
  }
  if (found->leaving) {
    return FailedPrecondition("{} is leaving already", NameOf(*found));
  }
  JobRun* const run = JobOf(found->incarnation);
  if (run == nullptr && IsHeld(found->incarnation)) {
    return FailedPrecondition("{} is of a job that ends: try again later", NameOf(*found));
  }
  if (std::ranges::any_of(
          jobs_, [&found](const auto& job) { return job->IsJoining(found->incarnation); })) {
    return FailedPrecondition("{} is about to become part of a job: try again later",
                              NameOf(*found));
  }
  proto::ScaleReply reply;
  if (run != nullptr) {
    run->OfferServers(FreeMembers(proto::ROLE_SERVER));
    SHOAL_RETURN_IF_ERROR(run->CheckDrain(*found));
    reply.set_job_id(run->job().id);
  }
  if (request.dry_run()) {
    return reply;
  }
  LogInfo("{} is to go", NameOf(*found));
  if (const absl::Status saved = SetDrained(found->incarnation, true); !saved.ok()) {
    members_.SetDrained(found->incarnation, false);
    return saved;
  }
  if (run != nullptr) {
    reply = run->Drain(*members_.Find(found->incarnation));
  }
  OfferMembers();
  return reply;
}

// Those that a job cannot do without after all.
void CoordinatorCore::KeepDrained(JobRun& run) {
  for (const Member& member : run.TakeKept()) {
    if (members_.Find(member.incarnation) != nullptr) {
      LogWarning("{} stays: nobody can have what it holds", NameOf(member));
      if (const absl::Status saved = SetDrained(member.incarnation, false); !saved.ok()) {
        LogWarning("{}", Message(saved));
      }
    }
  }
}

}  // namespace shoal::server
