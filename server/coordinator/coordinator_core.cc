#include "server/coordinator/coordinator_core.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::server {

CoordinatorCore::CoordinatorCore(const MembershipOptions& members, JobEnvironment environment)
    : members_(members), environment_(std::move(environment)) {}

absl::StatusOr<proto::SubmitJobReply> CoordinatorCore::Submit(
    LoadedJob job, std::optional<CompleteCheckpoint> newest, bool resume) {
  if (run_ != nullptr) {
    return FailedPrecondition(
        "this coordinator has a job already ({}); start another coordinator for another job",
        run_->state());
  }
  if (newest.has_value() && !resume) {
    return FailedPrecondition(
        "{} is the checkpoint of an earlier run: go on from it with --resume, or name another "
        "checkpoint.directory",
        newest->path);
  }
  SHOAL_RETURN_IF_ERROR(environment_.store.BeginJob(plan::ToYaml(job.job), job.token_file));
  if (newest.has_value()) {
    LogInfo("going on from {}", newest->path);
    SHOAL_RETURN_IF_ERROR(
        environment_.store.RecordCheckpoint({.step = newest->step, .path = newest->path}));
  }
  // 0: those that are there, one at least.
  const auto wanted = [this](int64_t count, proto::Role role) {
    return std::max<int64_t>(
        1, count > 0 ? count : static_cast<int64_t>(members_.members(role).size()));
  };
  wanted_servers_ = wanted(job.job.cluster.servers, proto::ROLE_SERVER);
  const int64_t stages = job.job.cluster.pipeline.stages;  // of whole groups
  wanted_workers_ =
      std::max(stages, wanted(job.job.cluster.workers, proto::ROLE_WORKER) / stages * stages);
  job.shard_map = job.place_shards(static_cast<int>(wanted_servers_));
  members_.set_lease(absl::Seconds(job.job.cluster.lease_seconds));
  run_ = std::make_unique<JobRun>(std::move(job), std::move(newest), environment_);
  StartIfComplete();
  proto::SubmitJobReply reply;
  reply.set_first_step(run_->version() + 1);
  return reply;
}

void CoordinatorCore::StartIfComplete() {
  if (run_ == nullptr || !run_->waiting()) {
    return;
  }
  std::vector<Member> servers = members_.members(proto::ROLE_SERVER);
  std::vector<Member> workers = members_.members(proto::ROLE_WORKER);
  const int64_t missing_servers = wanted_servers_ - static_cast<int64_t>(servers.size());
  const int64_t missing_workers = wanted_workers_ - static_cast<int64_t>(workers.size());
  if (missing_servers > 0 || missing_workers > 0) {
    run_->WaitFor(std::max<int64_t>(missing_servers, 0), std::max<int64_t>(missing_workers, 0));
    return;
  }
  servers.resize(static_cast<size_t>(wanted_servers_));
  workers.resize(static_cast<size_t>(wanted_workers_));
  run_->Start(std::move(servers), std::move(workers));
}

absl::Status CoordinatorCore::Stop(const std::string& reason) {
  if (run_ == nullptr) {
    return FailedPrecondition("there is no job to stop");
  }
  run_->Stop(reason);
  return absl::OkStatus();
}

proto::GetStatusReply CoordinatorCore::Status() const {
  proto::GetStatusReply reply;
  reply.set_state(run_ == nullptr ? "no job yet" : run_->state());
  if (run_ != nullptr) {
    reply.set_step(run_->version());
    reply.set_total_steps(run_->job().last_step);
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
      status.set_place(run_ == nullptr ? "" : run_->PlaceOf(member.incarnation));
      const proto::LastStep* last =
          run_ == nullptr ? nullptr : run_->LastStepOf(member.incarnation);
      if (last != nullptr) {
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
  StartIfComplete();
  proto::RegisterReply reply;
  reply.set_index(member.index);
  reply.set_incarnation(member.incarnation);
  reply.set_lease_seconds(absl::ToDoubleSeconds(member.lease));
  return reply;
}

absl::Status CoordinatorCore::Touch(uint64_t incarnation) {
  return members_.Renew(incarnation, environment_.clock.Now());
}

absl::StatusOr<proto::RenewLeaseReply> CoordinatorCore::Renew(
    const proto::RenewLeaseRequest& request) {
  const absl::Status renewed = Touch(request.incarnation());
  proto::RenewLeaseReply reply;
  reply.set_shut_down(job_over());
  reply.set_lease_seconds(absl::ToDoubleSeconds(members_.lease()));
  if (!renewed.ok() && !job_over()) {
    return renewed;
  }
  return reply;
}

absl::StatusOr<proto::LeaveReply> CoordinatorCore::Leave(const proto::LeaveRequest& request) {
  const std::optional<Member> member = members_.Remove(request.incarnation());
  if (!member.has_value()) {
    return proto::LeaveReply();  // A repetition, or its lease was over.
  }
  CountMembers();
  LogInfo("{} left{}{}", NameOf(*member), request.reason().empty() ? "" : ": ", request.reason());
  if (run_ != nullptr) {
    if (run_->waiting()) {
      StartIfComplete();
    } else {
      run_->OnLost(*member, fmt::format("it left{}{}", request.reason().empty() ? "" : ": ",
                                        request.reason()));
    }
  }
  return proto::LeaveReply();
}

absl::StatusOr<std::optional<proto::JoinJobReply>> CoordinatorCore::Join(
    const proto::JoinJobRequest& request) {
  const absl::Status renewed = Touch(request.incarnation());
  if (!renewed.ok() && !job_over()) {
    return renewed;
  }
  return run_ == nullptr ? std::nullopt : run_->Join(request.incarnation());
}

absl::StatusOr<std::optional<proto::NextStepReply>> CoordinatorCore::Next(
    const proto::NextStepRequest& request) {
  const absl::Status renewed = Touch(request.incarnation());
  if (!renewed.ok() && !job_over()) {
    return renewed;
  }
  return run_ == nullptr ? std::nullopt : run_->Next(request);
}

absl::StatusOr<proto::DrawMicrobatchReply> CoordinatorCore::Draw(
    const proto::DrawMicrobatchRequest& request) {
  const absl::Status renewed = Touch(request.incarnation());
  if (!renewed.ok() && !job_over()) {
    return renewed;
  }
  if (run_ == nullptr) {
    return FailedPrecondition("there is no job to draw a microbatch of");
  }
  return run_->Draw(request);
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
    if (run_ != nullptr && !run_->waiting()) {
      run_->Fence(member);
      run_->OnLost(member, why);
    }
  }
  if (!expired.empty()) {
    CountMembers();
    StartIfComplete();
  }
  if (run_ != nullptr) {
    run_->Tick();
  }
}

absl::Time CoordinatorCore::NextTick() const {
  return std::min(members_.NextExpiry(),
                  run_ == nullptr ? absl::InfiniteFuture() : run_->NextTick());
}

void CoordinatorCore::CountMembers() {
  environment_.metrics.servers.Set(
      static_cast<double>(members_.members(proto::ROLE_SERVER).size()));
  environment_.metrics.workers.Set(
      static_cast<double>(members_.members(proto::ROLE_WORKER).size()));
}

}  // namespace shoal::server
