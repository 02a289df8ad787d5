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
      job_ids_(members.seed, kJobIdStream) {
  // A job that ends or is let go of makes room for the next.
  environment_.post = [this, post = std::move(environment_.post)](std::function<void()> work) {
    post([this, work = std::move(work)] {
      work();
      OfferMembers();
    });
  };
}

// The state store refuses one that an earlier life has given, as long as it keeps that job.
std::string CoordinatorCore::NewJobId() {
  return fmt::format("job-{:012x}", job_ids_.Next() >> 16);
}

// Refuses what would wait for ever, or in the way of others.
absl::Status CoordinatorCore::CheckRoom(const LoadedJob& job) const {
  if (ending_) {
    return Unavailable("the coordinator was told to end");
  }
  if (!environment_.stays) {
    return jobs_.empty()
               ? absl::OkStatus()
               : FailedPrecondition(
                     "this coordinator has a job already ({}: {}); start another coordinator for "
                     "another job, or one with --stay, where jobs queue up",
                     jobs_.back()->job().id, jobs_.back()->state());
  }
  int64_t waiting = 0;
  int64_t ending = 0;
  for (const auto& run : jobs_) {
    waiting += run->waiting() ? 1 : 0;
    ending += run->over() && !run->cleared() ? 1 : 0;
    if (!run->over() && run->job().job.checkpoint.directory == job.job.checkpoint.directory) {
      return FailedPrecondition(
          "{} ({}) has the checkpoint.directory {}: stop it, or name another folder", run->job().id,
          run->state(), job.job.checkpoint.directory);
    }
  }
  if (waiting >= kMaxWaiting) {
    return ResourceExhausted("{} jobs wait already: stop one, or try again later", waiting);
  }
  if (ending >= kMaxEnding) {
    return Unavailable("{} jobs are being ended: try again later", ending);
  }
  const int64_t servers = std::ssize(members_.members(proto::ROLE_SERVER));
  if (servers < std::max<int64_t>(1, job.job.cluster.servers) && !job.wait_for_servers) {
    return FailedPrecondition(
        "the job takes {} servers (cluster.servers) and {} are there: start more, or let it wait "
        "with --wait-for-servers",
        std::max<int64_t>(1, job.job.cluster.servers), servers);
  }
  return absl::OkStatus();
}

void CoordinatorCore::ForgetOldJobs() {
  constexpr size_t kEventBytes = 256 << 10;  // some thousand steps
  for (const auto& run : jobs_) {
    if (run->over()) {
      run->events()->Shrink(kEventBytes);
    }
  }
  auto remembered = std::ranges::count_if(jobs_, [](const auto& run) { return run->over(); });
  std::erase_if(jobs_, [&](const auto& run) {
    if (remembered <= kRemembered || !run->cleared()) {
      return false;
    }
    --remembered;
    forgotten_changes_ += run->changes() + 1;
    return true;
  });
}

absl::StatusOr<proto::SubmitJobReply> CoordinatorCore::Submit(
    LoadedJob job, std::optional<CompleteCheckpoint> newest, bool resume) {
  SHOAL_RETURN_IF_ERROR(CheckRoom(job));
  if (newest.has_value() && !resume) {
    return FailedPrecondition(
        "{} is the checkpoint of an earlier run: go on from it with --resume, or name another "
        "checkpoint.directory",
        newest->path);
  }
  job.id = NewJobId();
  if (environment_.stays) {
    // A later life must know them: of those that it sees come, none need be the last.
    plan::ClusterOptions& cluster = job.job.cluster;
    const int64_t servers = std::ssize(members_.members(proto::ROLE_SERVER));
    cluster.servers = cluster.servers > 0 ? cluster.servers : std::max<int64_t>(1, servers);
    cluster.workers =
        cluster.workers > 0 ? cluster.workers : std::max(cluster.pipeline.stages, workers());
    *job.request.mutable_job() = plan::ToMessage(job.job);
  }
  SHOAL_RETURN_IF_ERROR(environment_.store.BeginJob(job.id, job.request.SerializeAsString()));
  LogInfo("{} is submitted", job.id);
  ForgetOldJobs();
  proto::SubmitJobReply reply;
  reply.set_job_id(job.id);
  reply.set_jobs_ahead(
      std::ranges::count_if(jobs_, [](const auto& run) { return !run->released(); }));
  reply.set_first_step(newest.has_value() ? newest->step + 1 : 1);
  SHOAL_RETURN_IF_ERROR(Enqueue(std::move(job), std::move(newest)));
  return reply;
}

absl::Status CoordinatorCore::Enqueue(LoadedJob job, std::optional<CompleteCheckpoint> newest) {
  if (newest.has_value()) {
    LogInfo("{} goes on from {}", job.id, newest->path);
    SHOAL_RETURN_IF_ERROR(
        environment_.store.RecordCheckpoint(job.id, {.step = newest->step, .path = newest->path}));
  }
  jobs_.push_back(std::make_unique<JobRun>(std::move(job), std::move(newest), environment_));
  OfferMembers();
  return absl::OkStatus();
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
    return std::ranges::any_of(jobs_, [&member](const auto& run) {
      return !run->released() && run->TakesPart(member.incarnation);
    });
  });
  return members;
}

void CoordinatorCore::OfferMembers() {
  int64_t ahead = 0;
  for (const auto& run : jobs_) {
    if (run->released()) {
      continue;
    }
    if (run->waiting()) {
      ahead == 0 ? Offer(*run) : run->Queue(ahead);
    }
    ++ahead;
  }
}

void CoordinatorCore::Offer(JobRun& run) {
  std::vector<Member> servers = FreeMembers(proto::ROLE_SERVER);
  std::vector<Member> workers = FreeMembers(proto::ROLE_WORKER);
  if (run.job().servers == 0) {
    // Counts that the job leaves open: those that are there, one at least, and whole groups.
    const plan::ClusterOptions& cluster = run.job().job.cluster;
    const auto wanted = [](int64_t count, const std::vector<Member>& there) {
      return std::max<int64_t>(1, count > 0 ? count : std::ssize(there));
    };
    const int64_t stages = cluster.pipeline.stages;
    run.Take(wanted(cluster.servers, servers),
             std::max(stages, wanted(cluster.workers, workers) / stages * stages));
    members_.set_lease(absl::Seconds(cluster.lease_seconds));
  }
  run.Offer(std::move(servers), std::move(workers));
}

void CoordinatorCore::OnLost(const Member& member, const std::string& why) {
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

proto::ListJobsReply CoordinatorCore::List() const {
  proto::ListJobsReply reply;
  const absl::Time now = environment_.clock.Now();
  for (const auto& run : jobs_) {
    proto::JobSummary& job = *reply.add_jobs();
    job.set_job_id(run->job().id);
    job.set_state(run->state());
    job.set_step(run->version());
    job.set_total_steps(run->job().last_step);
    job.set_model(run->job().job.model);
    job.set_checkpoint_directory(run->job().job.checkpoint.directory);
    job.set_seconds_in_state(absl::ToDoubleSeconds(now - run->state_since()));
    job.set_over(run->over());
  }
  return reply;
}

absl::StatusOr<proto::RegisterReply> CoordinatorCore::Register(
    const proto::RegisterRequest& request) {
  if (ending_) {
    return Unavailable("the coordinator was told to end");
  }
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

// Whether there is nothing more for a member, which is to leave.
bool CoordinatorCore::IsDoneWith(uint64_t incarnation) const {
  const Member* member = members_.Find(incarnation);
  if (member != nullptr && member->stays) {
    return false;
  }
  return ended() || (JobOf(incarnation) == nullptr &&
                     std::ranges::any_of(jobs_, [incarnation](const auto& run) {
                       return run->TakesPart(incarnation);
                     }));
}

// Who is late is told that all is over, not that its lease is.
absl::Status CoordinatorCore::Touch(uint64_t incarnation) {
  const absl::Status renewed = members_.Renew(incarnation, environment_.clock.Now());
  return ended() ? absl::OkStatus() : renewed;
}

absl::StatusOr<proto::RenewLeaseReply> CoordinatorCore::Renew(
    const proto::RenewLeaseRequest& request) {
  SHOAL_RETURN_IF_ERROR(Touch(request.incarnation()));
  proto::RenewLeaseReply reply;
  reply.set_shut_down(IsDoneWith(request.incarnation()));
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
  if (!IsDoneWith(request.incarnation())) {
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
