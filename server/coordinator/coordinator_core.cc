#include "server/coordinator/coordinator_core.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/job/job_id.h"

namespace shoal::server {
namespace {

constexpr uint64_t kJobIdStream = 1;

}  // namespace

CoordinatorCore::CoordinatorCore(const MembershipOptions& members, JobEnvironment environment)
    : members_(members),
      environment_(std::move(environment)),
      job_ids_(members.seed, kJobIdStream) {}

// The state store refuses one that an earlier life has given, as long as it keeps that job.
std::string CoordinatorCore::NewJobId() {
  return fmt::format("job-{:012x}", job_ids_.Next() >> 16);
}

void CoordinatorCore::TakeMembers(LoadedJob& job) const {
  // 0: those that are there, one at least.
  const auto wanted = [this](int64_t count, proto::Role role) {
    return std::max<int64_t>(1, count > 0 ? count : std::ssize(FreeMembers(role)));
  };
  job.servers = wanted(job.job.cluster.servers, proto::ROLE_SERVER);
  const int64_t stages = job.job.cluster.pipeline.stages;  // of whole groups
  job.workers =
      std::max(stages, wanted(job.job.cluster.workers, proto::ROLE_WORKER) / stages * stages);
  job.shard_map = job.place_shards(static_cast<int>(job.servers));
}

absl::StatusOr<proto::SubmitJobReply> CoordinatorCore::Submit(
    LoadedJob job, std::optional<CompleteCheckpoint> newest, bool resume) {
  if (!jobs_.empty()) {
    return FailedPrecondition(
        "this coordinator has a job already ({}: {}); start another coordinator for another job",
        newest_, jobs_.at(newest_)->state());
  }
  if (newest.has_value() && !resume) {
    return FailedPrecondition(
        "{} is the checkpoint of an earlier run: go on from it with --resume, or name another "
        "checkpoint.directory",
        newest->path);
  }
  job.id = NewJobId();
  SHOAL_RETURN_IF_ERROR(environment_.store.BeginJob(job.id, plan::ToYaml(job.job), job.token_file));
  LogInfo("{} is submitted", job.id);
  if (newest.has_value()) {
    LogInfo("{} goes on from {}", job.id, newest->path);
    SHOAL_RETURN_IF_ERROR(
        environment_.store.RecordCheckpoint(job.id, {.step = newest->step, .path = newest->path}));
  }
  TakeMembers(job);
  members_.set_lease(absl::Seconds(job.job.cluster.lease_seconds));
  newest_ = job.id;
  auto& run = jobs_[newest_];
  run = std::make_unique<JobRun>(std::move(job), std::move(newest), environment_);
  OfferMembers();
  proto::SubmitJobReply reply;
  reply.set_job_id(newest_);
  reply.set_first_step(run->version() + 1);
  return reply;
}

absl::StatusOr<JobRun*> CoordinatorCore::Find(const std::string& job_id) const {
  if (const auto found = jobs_.find(job_id); found != jobs_.end()) {
    return found->second.get();
  }
  std::vector<std::string> here;
  for (const auto& [id, run] : jobs_) {
    here.push_back(id);
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
  return jobs_.at(newest_).get();
}

JobRun* CoordinatorCore::JobOf(uint64_t incarnation) const {
  for (const auto& [id, run] : jobs_) {
    if (!run->over() && run->TakesPart(incarnation)) {
      return run.get();
    }
  }
  return nullptr;
}

std::vector<Member> CoordinatorCore::FreeMembers(proto::Role role) const {
  std::vector<Member> members = members_.members(role);
  std::erase_if(members,
                [this](const Member& member) { return JobOf(member.incarnation) != nullptr; });
  return members;
}

void CoordinatorCore::OfferMembers() {
  for (const auto& [id, run] : jobs_) {
    if (run->waiting()) {
      run->Offer(FreeMembers(proto::ROLE_SERVER), FreeMembers(proto::ROLE_WORKER));
    }
  }
}

void CoordinatorCore::OnLost(const Member& member, const std::string& why) {
  for (const auto& [id, run] : jobs_) {
    if (!run->waiting()) {
      run->OnLost(member, why);
    }
  }
}

bool CoordinatorCore::jobs_over() const {
  return !jobs_.empty() &&
         std::ranges::all_of(jobs_, [](const auto& job) { return job.second->over(); });
}

int64_t CoordinatorCore::changes() const {
  int64_t changes = 0;
  for (const auto& [id, run] : jobs_) {
    changes += run->changes() + 1;
  }
  return changes;
}

absl::Status CoordinatorCore::Stop(const std::string& job_id, const std::string& reason) {
  SHOAL_ASSIGN_OR_RETURN(JobRun * run, FindOrNewest(job_id));
  run->Stop(reason);
  return absl::OkStatus();
}

void CoordinatorCore::StopAll(const std::string& reason) {
  for (const auto& [id, run] : jobs_) {
    run->Stop(reason);
  }
}

absl::StatusOr<std::shared_ptr<EventLog>> CoordinatorCore::Events(const std::string& job_id) const {
  SHOAL_ASSIGN_OR_RETURN(const JobRun* run, FindOrNewest(job_id));
  return run->events();
}

absl::StatusOr<proto::GetStatusReply> CoordinatorCore::Status(const std::string& job_id) const {
  const JobRun* run = nullptr;
  if (!job_id.empty() || has_job()) {
    SHOAL_ASSIGN_OR_RETURN(run, FindOrNewest(job_id));
  }
  proto::GetStatusReply reply;
  reply.set_state("no job yet");
  if (run != nullptr) {
    reply.set_job_id(run->job().id);
    reply.set_state(run->state());
    reply.set_step(run->version());
    reply.set_total_steps(run->job().last_step);
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
  SHOAL_ASSIGN_OR_RETURN(const Member member, members_.Register(request, environment_.clock.Now()));
  // Before the answer, so that a later life of this coordinator never gives the same.
  if (const absl::Status saved = environment_.store.SaveIncarnations(members_.issued());
      !saved.ok()) {
    members_.Remove(member.incarnation);
    return saved;
  }
  LogInfo("{} registered{}{}", NameOf(member), member.address.empty() ? "" : " at ",
          member.address);
  CountMembers();
  OfferMembers();
  proto::RegisterReply reply;
  reply.set_index(member.index);
  reply.set_incarnation(member.incarnation);
  reply.set_lease_seconds(absl::ToDoubleSeconds(member.lease));
  return reply;
}

// Who is late is told that jobs are over, not that its lease is.
absl::Status CoordinatorCore::Touch(uint64_t incarnation) {
  const absl::Status renewed = members_.Renew(incarnation, environment_.clock.Now());
  return jobs_over() ? absl::OkStatus() : renewed;
}

absl::StatusOr<proto::RenewLeaseReply> CoordinatorCore::Renew(
    const proto::RenewLeaseRequest& request) {
  SHOAL_RETURN_IF_ERROR(Touch(request.incarnation()));
  proto::RenewLeaseReply reply;
  reply.set_shut_down(jobs_over());
  reply.set_lease_seconds(absl::ToDoubleSeconds(members_.lease()));
  return reply;
}

absl::StatusOr<proto::LeaveReply> CoordinatorCore::Leave(const proto::LeaveRequest& request) {
  const std::optional<Member> member = members_.Remove(request.incarnation());
  if (!member.has_value()) {
    return proto::LeaveReply();  // A repetition, or its lease was over.
  }
  CountMembers();
  LogInfo("{} left{}{}", NameOf(*member), request.reason().empty() ? "" : ": ", request.reason());
  OnLost(*member,
         fmt::format("it left{}{}", request.reason().empty() ? "" : ": ", request.reason()));
  OfferMembers();
  return proto::LeaveReply();
}

absl::StatusOr<std::optional<proto::JoinJobReply>> CoordinatorCore::Join(
    const proto::JoinJobRequest& request) {
  SHOAL_RETURN_IF_ERROR(Touch(request.incarnation()));
  if (!request.job_id().empty()) {
    SHOAL_ASSIGN_OR_RETURN(const JobRun* run, Find(request.job_id()));
    return run->Join(request.incarnation());
  }
  if (const JobRun* run = JobOf(request.incarnation()); run != nullptr) {
    return run->Join(request.incarnation());
  }
  if (!jobs_over()) {
    return std::nullopt;
  }
  proto::JoinJobReply reply;
  reply.set_shut_down(true);
  return reply;
}

absl::StatusOr<std::optional<proto::NextStepReply>> CoordinatorCore::Next(
    const proto::NextStepRequest& request) {
  SHOAL_RETURN_IF_ERROR(Touch(request.incarnation()));
  SHOAL_ASSIGN_OR_RETURN(JobRun * run, Find(request.job_id()));
  return run->Next(request);
}

absl::StatusOr<proto::DrawMicrobatchReply> CoordinatorCore::Draw(
    const proto::DrawMicrobatchRequest& request) {
  SHOAL_RETURN_IF_ERROR(Touch(request.incarnation()));
  SHOAL_ASSIGN_OR_RETURN(JobRun * run, Find(request.job_id()));
  return run->Draw(request);
}

void CoordinatorCore::Tick() {
  const std::vector<Member> expired = members_.TakeExpired(environment_.clock.Now());
  for (const Member& member : expired) {
    const std::string why =
        fmt::format("its lease of {:g} s is over", absl::ToDoubleSeconds(member.lease));
    (member.role == proto::ROLE_SERVER ? environment_.metrics.server_lease_expiries
                                       : environment_.metrics.worker_lease_expiries)
        .Increment();
    LogWarning("{} is lost: {}", NameOf(member), why);
    for (const auto& [id, run] : jobs_) {
      run->Fence(member);
    }
    OnLost(member, why);
  }
  if (!expired.empty()) {
    CountMembers();
    OfferMembers();
  }
  for (const auto& [id, run] : jobs_) {
    run->Tick();
  }
}

absl::Time CoordinatorCore::NextTick() const {
  absl::Time next = members_.NextExpiry();
  for (const auto& [id, run] : jobs_) {
    next = std::min(next, run->NextTick());
  }
  return next;
}

void CoordinatorCore::CloseEvents() {
  for (const auto& [id, run] : jobs_) {
    run->events()->Close();
  }
}

std::vector<std::shared_ptr<ServerClient>> CoordinatorCore::ReleaseServers() {
  std::vector<std::shared_ptr<ServerClient>> servers;
  for (const auto& [id, run] : jobs_) {
    servers.push_back(run->ReleaseServers());
  }
  return servers;
}

void CoordinatorCore::CountMembers() {
  environment_.metrics.servers.Set(
      static_cast<double>(members_.members(proto::ROLE_SERVER).size()));
  environment_.metrics.workers.Set(
      static_cast<double>(members_.members(proto::ROLE_WORKER).size()));
}

}  // namespace shoal::server
