#include "server/coordinator/coordinator_core.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "core/job/job_id.h"
#include "server/coordinator/job/takeover.h"

namespace shoal::server {
namespace {

constexpr uint64_t kJobIdStream = 1;

}  // namespace

CoordinatorCore::CoordinatorCore(const MembershipOptions& members, JobEnvironment environment)
    : members_(members),
      environment_(std::move(environment)),
      job_ids_(members.seed, kJobIdStream),
      cluster_(members.cluster),
      // A later life goes on with a run of an earlier one under the first of its numbers.
      next_run_(FirstRunOf(environment_.term) + (environment_.term > 1 ? 1 : 0)),
      patience_(environment_.durable
                    ? absl::Seconds(plan::ClusterOptions().coordinator_patience_seconds)
                    : absl::ZeroDuration()) {
  environment_.superseded = [this, tell = std::move(environment_.superseded)](const auto& why) {
    superseded_ = true;
    tell(why);
  };
  environment_.next_run = [this] { return next_run_++; };
  // A job that ends or is let go of makes room for the next.
  environment_.post = [this, post = std::move(environment_.post)](std::function<void()> work) {
    post([this, work = std::move(work)] {
      work();
      if (!superseded_) {
        OfferMembers();
      }
    });
  };
}

void CoordinatorCore::Restore(const std::vector<proto::SavedMember>& members) {
  taking_up_ = true;
  for (const Member& none : members_.Restore(members, environment_.clock.Now())) {
    const absl::Status why = members_.CheckMember(none.incarnation);
    LogWarning("{} is a member no more: {}", NameOf(none),
               absl::IsNotFound(why) ? "another is there in its place" : Message(why));
    Unrecord(none);
  }
  CountMembers();
}

void CoordinatorCore::Begin() {
  taking_up_ = false;
  OfferMembers();
}

// The state store refuses one that an earlier life has given, as long as it keeps that job.
std::string CoordinatorCore::NewJobId() {
  return fmt::format("job-{:012x}", job_ids_.Next() >> 16);
}

absl::StatusOr<JobRun*> CoordinatorCore::Find(const std::string& job_id) const {
  std::vector<std::string> here;
  for (const auto& run : jobs_) {
    if (run->job().id == job_id) {
      return run.get();
    }
    here.push_back(run->job().id);
  }
  return plan::JobNotHere(job_id, "this coordinator has", here);
}

absl::StatusOr<JobRun*> CoordinatorCore::FindOrNewest(const std::string& job_id) const {
  if (!job_id.empty()) {
    return Find(job_id);
  }
  if (jobs_.empty()) {
    return FailedPrecondition("there is no job yet");
  }
  return jobs_.back().get();
}

JobRun* CoordinatorCore::JobOf(uint64_t incarnation) const {
  for (const auto& run : jobs_) {
    if (!run->over() && run->TakesPart(incarnation)) {
      return run.get();
    }
  }
  return nullptr;
}

std::vector<Member> CoordinatorCore::FreeMembers(proto::Role role) const {
  std::vector<Member> members = members_.members(role);
  std::erase_if(members, [this](const Member& member) {
    return member.leaving || in_earlier_run_.contains(member.incarnation) ||
           std::ranges::any_of(jobs_, [&member](const auto& run) {
             return !run->released() && run->TakesPart(member.incarnation);
           });
  });
  return members;
}

void CoordinatorCore::OnLost(const Member& member, const std::string& why) {
  in_earlier_run_.erase(member.incarnation);
  for (const auto& run : jobs_) {
    if (!run->waiting()) {
      run->OnLost(member, why);
    }
  }
}

bool CoordinatorCore::ended() const {
  const bool over = std::ranges::all_of(jobs_, [](const auto& run) { return run->over(); });
  return over && (ending_ || (!environment_.stays && !jobs_.empty()));
}

int64_t CoordinatorCore::changes() const {
  int64_t changes = forgotten_changes_;
  for (const auto& run : jobs_) {
    changes += run->changes() + 1;
  }
  return changes;
}

absl::Status CoordinatorCore::Stop(const std::string& job_id, const std::string& reason) {
  SHOAL_ASSIGN_OR_RETURN(JobRun * run, FindOrNewest(job_id));
  run->Stop(reason);
  OfferMembers();
  return absl::OkStatus();
}

absl::StatusOr<proto::ScaleReply> CoordinatorCore::Scale(const proto::ScaleRequest& request) {
  if (request.has_drain()) {
    return Drain(request);
  }
  SHOAL_ASSIGN_OR_RETURN(JobRun * run, FindOrNewest(request.job_id()));
  SHOAL_ASSIGN_OR_RETURN(proto::ScaleReply reply, run->Scale(request));
  OfferMembers();
  return reply;
}

void CoordinatorCore::End(const std::string& reason) {
  ending_ = true;
  for (const auto& run : jobs_) {
    run->Stop(reason, /*for_good=*/!environment_.stays);
  }
}

absl::StatusOr<std::shared_ptr<EventLog>> CoordinatorCore::Events(const std::string& job_id) const {
  SHOAL_ASSIGN_OR_RETURN(const JobRun* run, FindOrNewest(job_id));
  return run->events();
}

absl::StatusOr<proto::GetStatusReply> CoordinatorCore::Status(const std::string& job_id) const {
  const JobRun* run = nullptr;
  if (!job_id.empty() || !jobs_.empty()) {
    SHOAL_ASSIGN_OR_RETURN(run, FindOrNewest(job_id));
  }
  proto::GetStatusReply reply;
  reply.set_state("no job yet");
  if (run != nullptr) {
    reply.set_job_id(run->job().id);
    reply.set_state(run->state());
    reply.set_step(run->version());
    reply.set_total_steps(run->job().last_step);
    reply.set_mfu(run->mfu());
  }
  if (environment_.durable) {
    const plan::ClusterOptions& cluster =
        run != nullptr ? run->job().job.cluster : plan::ClusterOptions();
    reply.set_coordinator_patience_seconds(cluster.coordinator_patience_seconds);
  }
  const absl::Time now = environment_.clock.Now();
  for (const proto::Role role : {proto::ROLE_SERVER, proto::ROLE_WORKER}) {
    for (const Member& member : members_.members(role)) {
      proto::MemberStatus& status = *reply.add_members();
      status.set_role(member.role);
      status.set_index(member.index);
      status.set_address(member.address);
      status.set_host(member.host);
      status.set_pid(member.pid);
      status.set_metrics_port(member.metrics_port);
      status.set_leaving(member.leaving);
      status.set_seconds_since_renewal(absl::ToDoubleSeconds(now - member.renewed));
      if (run == nullptr) {
        continue;
      }
      status.set_place(run->PlaceOf(member.incarnation));
      if (const proto::LastStep* last = run->LastStepOf(member.incarnation); last != nullptr) {
        *status.mutable_last_step() = *last;
      }
    }
  }
  return reply;
}

absl::StatusOr<proto::RegisterReply> CoordinatorCore::Register(
    const proto::RegisterRequest& request) {
  if (ending_) {
    return Unavailable("the coordinator was told to end");
  }
  if (request.version() != members_.version()) {
    environment_.metrics.refused_versions.Increment();
  }
  const size_t members = members_.size();
  SHOAL_ASSIGN_OR_RETURN(const Member member, members_.Register(request, environment_.clock.Now()));
  // Before the answer, so that a later life of this coordinator knows it. A repeated call finds a
  // member that a job may have.
  if (members_.size() != members || SHOAL_PLANTED("member-dropped")) {
    if (const absl::Status saved =
            environment_.store.SaveMember(ToSaved(member), members_.issued());
        !saved.ok()) {
      members_.Undo(member.incarnation);
      return saved;
    }
  }
  environment_.reached("member");
  LogInfo("{} registered{}{}", NameOf(member), member.address.empty() ? "" : " at ",
          member.address);
  CountMembers();
  OfferMembers();
  proto::RegisterReply reply;
  reply.set_index(member.index);
  reply.set_incarnation(member.incarnation);
  reply.set_lease_seconds(absl::ToDoubleSeconds(member.lease));
  reply.set_term(environment_.term);
  reply.set_cluster(cluster_);
  reply.set_coordinator_patience_seconds(absl::ToDoubleSeconds(patience_));
  return reply;
}

std::string CoordinatorCore::AddressToTakeOver(const proto::RegisterRequest& request) const {
  const Member* holder = request.takes_over() ? members_.HolderOf(request) : nullptr;
  return holder == nullptr || holder->nonce == request.nonce() ? "" : holder->address;
}

void CoordinatorCore::TakeOver(const proto::RegisterRequest& request) {
  if (AddressToTakeOver(request).empty()) {
    return;
  }
  const Member gone = *Remove(members_.HolderOf(request)->incarnation);
  LogWarning("{} is lost: {} refuses connections", NameOf(gone), gone.address);
  environment_.metrics.OnMemberLost(gone.role);
  for (const auto& run : jobs_) {
    run->Fence(gone);
  }
  OnLost(gone, gone.address + " refuses connections");
}

std::optional<Member> CoordinatorCore::Remove(uint64_t incarnation) {
  std::optional<Member> member = members_.Remove(incarnation);
  if (member.has_value()) {
    Unrecord(*member);
  }
  return member;
}

void CoordinatorCore::Unrecord(const Member& member) {
  if (const absl::Status removed = environment_.store.RemoveMember(member.incarnation);
      !removed.ok()) {
    LogWarning("the record keeps {}, which is a member no more: {}", NameOf(member),
               Message(removed));
  }
}

// Who is late is told that all is over, not that its lease is.
absl::Status CoordinatorCore::Touch(uint64_t incarnation) {
  const absl::Status renewed = members_.Renew(incarnation, environment_.clock.Now());
  return ended() ? absl::OkStatus() : renewed;
}

// One that an earlier life gave without a record is to say so first, when it renews its lease.
absl::Status CoordinatorCore::CheckMember(uint64_t incarnation) {
  const absl::Status renewed = Touch(incarnation);
  return !renewed.ok() && members_.MayComeBack(incarnation)
             ? Unavailable("{}; ask again", Message(renewed))
             : renewed;
}

void CoordinatorCore::AddLog(const Member& member, const proto::NewLines& lines) {
  logs_.Add(fmt::format("{}-{}", RoleName(member.role), member.index), lines,
            environment_.clock.Now());
}

absl::StatusOr<proto::RenewLeaseReply> CoordinatorCore::Renew(
    const proto::RenewLeaseRequest& request) {
  SHOAL_RETURN_IF_ERROR(Touch(request.incarnation()));
  members_.OnRenewed(request.incarnation());
  if (const Member* member = members_.Find(request.incarnation()); member != nullptr) {
    AddLog(*member, request.log());
  }
  proto::RenewLeaseReply reply;
  reply.set_shut_down(IsDoneWith(request.incarnation()));
  reply.set_lease_seconds(absl::ToDoubleSeconds(members_.lease()));
  reply.set_term(environment_.term);
  reply.set_coordinator_patience_seconds(absl::ToDoubleSeconds(patience_));
  return reply;
}

void CoordinatorCore::OnDisconnected(uint64_t incarnation) {
  members_.OnDisconnected(incarnation, environment_.clock.Now());
}

absl::StatusOr<std::optional<proto::JoinJobReply>> CoordinatorCore::Join(
    const proto::JoinJobRequest& request) {
  SHOAL_RETURN_IF_ERROR(CheckMember(request.incarnation()));
  if (in_earlier_run_.erase(request.incarnation()) > 0) {
    OfferMembers();
  }
  if (!request.job_id().empty()) {
    SHOAL_ASSIGN_OR_RETURN(JobRun * run, Find(request.job_id()));
    return run->Join(request);
  }
  if (JobRun* run = JobOf(request.incarnation()); run != nullptr) {
    return run->Join(request);
  }
  if (!IsDoneWith(request.incarnation())) {
    return std::nullopt;
  }
  proto::JoinJobReply reply;
  reply.set_shut_down(true);
  reply.set_term(environment_.term);
  return reply;
}

absl::StatusOr<std::optional<proto::NextStepReply>> CoordinatorCore::Next(
    const proto::NextStepRequest& request) {
  if (const absl::Status member = CheckMember(request.incarnation());
      !member.ok() && !SHOAL_PLANTED("fenced-report")) {
    return member;
  }
  SHOAL_ASSIGN_OR_RETURN(JobRun * run, Find(request.job_id()));
  if (request.leaving()) {  // nobody takes it again while it goes
    members_.MarkLeaving(request.incarnation());
  }
  return run->Next(request);
}

absl::StatusOr<proto::DrawMicrobatchReply> CoordinatorCore::Draw(
    const proto::DrawMicrobatchRequest& request) {
  SHOAL_RETURN_IF_ERROR(CheckMember(request.incarnation()));
  SHOAL_ASSIGN_OR_RETURN(JobRun * run, Find(request.job_id()));
  return run->Draw(request);
}

std::string CoordinatorCore::WhyLost(const Member& expired) {
  return expired.cut_off == absl::InfiniteFuture()
             ? fmt::format("its lease of {:g} s is over", absl::ToDoubleSeconds(expired.lease))
             : fmt::format("its connection broke, and it was not back within {:g} s",
                           absl::ToDoubleSeconds(kComeBackWithin));
}

void CoordinatorCore::Tick() {
  const std::vector<Member> expired = members_.TakeExpired(environment_.clock.Now());
  for (const Member& member : expired) {
    const std::string why = WhyLost(member);
    environment_.metrics.OnMemberLost(member.role);
    LogWarning("{} is lost: {}", NameOf(member), why);
    Unrecord(member);
    for (const auto& run : jobs_) {
      run->Fence(member);
    }
    OnLost(member, why);
  }
  if (!expired.empty()) {
    CountMembers();
    OfferMembers();
  }
  for (const auto& run : jobs_) {
    run->Tick();
  }
}

bool CoordinatorCore::members_to_leave() const {
  for (const proto::Role role : {proto::ROLE_SERVER, proto::ROLE_WORKER}) {
    if (std::ranges::any_of(members_.members(role),
                            [](const Member& member) { return !member.stays; })) {
      return true;
    }
  }
  return false;
}

absl::Time CoordinatorCore::NextTick() const {
  absl::Time next = members_.NextExpiry();
  for (const auto& run : jobs_) {
    next = std::min(next, run->NextTick());
  }
  return next;
}

void CoordinatorCore::CloseEvents() {
  for (const auto& run : jobs_) {
    run->events()->Close();
  }
}

std::vector<std::shared_ptr<ServerClient>> CoordinatorCore::ReleaseServers() {
  std::vector<std::shared_ptr<ServerClient>> servers;
  for (const auto& run : jobs_) {
    for (std::shared_ptr<ServerClient>& control : run->ReleaseServers()) {
      servers.push_back(std::move(control));
    }
  }
  return servers;
}

void CoordinatorCore::MeasureLeases() {
  const absl::Time now = environment_.clock.Now();
  environment_.metrics.oldest_server_lease.Set(
      absl::ToDoubleSeconds(members_.OldestLease(proto::ROLE_SERVER, now)));
  environment_.metrics.oldest_worker_lease.Set(
      absl::ToDoubleSeconds(members_.OldestLease(proto::ROLE_WORKER, now)));
}

void CoordinatorCore::CountMembers() {
  environment_.metrics.servers.Set(
      static_cast<double>(members_.members(proto::ROLE_SERVER).size()));
  environment_.metrics.workers.Set(
      static_cast<double>(members_.members(proto::ROLE_WORKER).size()));
}

}  // namespace shoal::server
