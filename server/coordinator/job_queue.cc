// CoordinatorCore's jobs: who is let in, whose turn it is, and who starts again.
#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "server/coordinator/coordinator_core.h"
#include "server/coordinator/job/worker_kind.h"

namespace shoal::server {
namespace {

// Where the job leaves the count open: of those that are there, alike if it asks for that, whole
// groups, one at least.
int64_t WantedWorkers(const LoadedJob& job, std::vector<Member> there) {
  const plan::ClusterOptions& cluster = job.job.cluster;
  if (cluster.workers > 0) {
    return cluster.workers;
  }
  if (job.job.train.exact_devices) {
    KeepOneKind(job.job, job.workers_kind, there);
  }
  const int64_t stages = cluster.pipeline.stages;
  return std::max(stages, std::ssize(there) / stages * stages);
}

}  // namespace

bool TakeOutcomeOfEvents(SavedJob& saved) {
  if (!saved.outcome.empty() || saved.events.empty() || !EndsJob(saved.events.back())) {
    return false;
  }
  const proto::JobEvent& end = saved.events.back();
  if (end.has_failed()) {
    saved.outcome = "failed: " + end.failed().message();
  } else {
    saved.outcome = end.done().interrupted() ? "interrupted" : "done";
  }
  return true;
}

void ForgetRunsThatAreOver(SavedState& saved) {
  int64_t newest = 0;
  for (const SavedJob& job : saved.jobs) {
    newest = std::max(newest, job.run.has_value() ? job.run->run() : 0);
  }
  for (SavedJob& job : saved.jobs) {
    if (job.outcome.empty() && job.run.has_value() && job.run->run() < newest &&
        !job.last_commit.has_value()) {
      job.run.reset();
    }
  }
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
    if ((!run->over() || run->restarts()) &&
        run->job().job.checkpoint.directory == job.job.checkpoint.directory) {
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
  return absl::OkStatus();
}

void CoordinatorCore::ForgetOldJobs() {
  constexpr size_t kEventBytes = 256 << 10;  // some thousand steps
  const auto is_over = [](const auto& run) { return run->cleared() && !run->restarts(); };
  const int64_t over = std::ranges::count_if(jobs_, is_over);
  if (over == remembered_) {
    return;
  }
  remembered_ = over;
  for (const auto& run : jobs_) {
    if (is_over(run)) {
      run->events()->Shrink(kEventBytes);
    }
  }
  std::erase_if(jobs_, [&](const auto& run) {
    if (remembered_ <= kRemembered || !is_over(run)) {
      return false;
    }
    --remembered_;
    logs_.Forget(run->job().id);
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
    std::vector<Member> servers = members_.members(proto::ROLE_SERVER);
    std::erase_if(servers, [](const Member& server) { return server.leaving; });
    SHOAL_ASSIGN_OR_RETURN(cluster.servers,
                           DecideServers(servers, {.servers = cluster.servers,
                                                   .waits = job.request.wait_for_servers(),
                                                   .bytes = job.server_bytes}));
    cluster.workers = WantedWorkers(job, members_.members(proto::ROLE_WORKER));
    *job.request.mutable_job() = plan::ToMessage(job.job);
  }
  SHOAL_RETURN_IF_ERROR(environment_.store.BeginJob(job.id, job.request.SerializeAsString()));
  LogInfo("{} is submitted", job.id);
  proto::SubmitJobReply reply;
  reply.set_job_id(job.id);
  reply.set_jobs_ahead(
      std::ranges::count_if(jobs_, [](const auto& run) { return !run->released(); }));
  reply.set_first_step(newest.has_value() ? newest->step + 1 : 1);
  SHOAL_RETURN_IF_ERROR(Enqueue(std::move(job), std::move(newest), SavedJob()));
  return reply;
}

JobRun& CoordinatorCore::Add(LoadedJob job, std::optional<CompleteCheckpoint> newest,
                             const SavedJob& saved) {
  const EventLog::Save save = [&store = environment_.store, id = job.id](const auto& event) {
    if (const absl::Status kept = store.SaveEvent(id, event); !kept.ok()) {
      LogWarning("an event of {} will be missing in a later life: {}", id, Message(kept));
    }
  };
  auto events = std::make_shared<EventLog>(saved.events, environment_.term, save);
  jobs_.push_back(
      std::make_unique<JobRun>(std::move(job), std::move(newest), environment_, std::move(events)));
  return *jobs_.back();
}

// Members that the run had and that are none any more, or are to go.
void CoordinatorCore::TellWhoIsGone(JobRun& run, const proto::SavedRun& saved) {
  for (const auto* members : {&saved.servers(), &saved.workers()}) {
    for (const proto::SavedMember& member : *members) {
      const absl::Status there = members_.CheckMember(member.incarnation());
      if (!there.ok()) {
        run.Fence(FromSaved(member));
        run.OnLost(FromSaved(member), absl::IsNotFound(there) ? "it went when the coordinator did"
                                                              : std::string(Message(there)));
      } else if (const Member& here = *members_.Find(member.incarnation()); here.drained) {
        run.OnLeaving(here, "shoal drain");
      }
    }
  }
}

void CoordinatorCore::Remember(LoadedJob job, const SavedJob& saved) {
  std::vector<Member> servers;
  if (saved.run.has_value()) {
    for (const proto::SavedMember& server : saved.run->servers()) {
      servers.push_back(FromSaved(server));
    }
  }
  JobRun& run = Add(std::move(job), std::nullopt, saved);
  if (!servers.empty()) {
    run.Disown(FreeMembers(proto::ROLE_SERVER));
  }
  run.BeOver(saved.outcome, std::move(servers));
  if (saved.run.has_value()) {
    TellWhoIsGone(run, *saved.run);
  }
}

// What members are told from now on.
void CoordinatorCore::Prepare(const plan::Job& job) {
  members_.set_lease(absl::Seconds(job.cluster.lease_seconds));
  if (environment_.durable) {
    patience_ = absl::Seconds(job.cluster.coordinator_patience_seconds);
  }
}

absl::Status CoordinatorCore::Resume(LoadedJob job, std::optional<CompleteCheckpoint> newest,
                                     const SavedJob& saved) {
  const bool began =
      saved.last_commit.has_value() || saved.run.has_value() || !saved.checkpoints.empty();
  if (newest.has_value() && !began && !job.request.resume()) {
    return FailedPrecondition("{} is the checkpoint of another run", newest->path);
  }
  job.id = saved.id;
  // Those that it had are not here yet.
  job.patience = absl::Seconds(job.job.cluster.recovery_timeout_seconds);
  job.restarts = 1;
  return Enqueue(std::move(job), std::move(newest), saved);
}

absl::Status CoordinatorCore::Enqueue(LoadedJob job, std::optional<CompleteCheckpoint> newest,
                                      const SavedJob& saved) {
  if (newest.has_value()) {
    LogInfo("{} goes on from {}", job.id, newest->path);
    SHOAL_RETURN_IF_ERROR(
        environment_.store.RecordCheckpoint(job.id, {.step = newest->step, .path = newest->path}));
  }
  const bool goes_on = saved.run.has_value() && saved.run->servers_size() > 0;
  JobRun& run = Add(std::move(job), std::move(newest), saved);
  if (goes_on) {
    Prepare(run.job().job);
    run.TakeOver({.saved = *saved.run, .commit = saved.last_commit});
    run.Disown(FreeMembers(proto::ROLE_SERVER));
    TellWhoIsGone(run, *saved.run);
  }
  if (!saved.stop.empty()) {
    run.Stop(saved.stop);
  }
  OfferMembers();
  return absl::OkStatus();
}

// Makes a new run of one that lost a member, in its place.
void CoordinatorCore::StartAgain(std::unique_ptr<JobRun>& run) {
  forgotten_changes_ += run->changes() + 1;
  const std::shared_ptr<EventLog> events = run->events();
  const std::optional<CompleteCheckpoint> newest =
      SHOAL_PLANTED("restore-forgotten") ? std::nullopt : run->newest_checkpoint();
  for (const Member& worker : run->workers()) {
    if (members_.Find(worker.incarnation) != nullptr) {
      in_earlier_run_.insert(worker.incarnation);
    }
  }
  LoadedJob job = run->TakeJob();
  job.run = kNoRun;
  run = std::make_unique<JobRun>(std::move(job), newest, environment_, events);
}

// A member that could not be reached takes part in nothing more. One that lives is told so when it
// next renews its lease.
void CoordinatorCore::RemoveUnreachable() {
  for (size_t run = 0; run < jobs_.size(); ++run) {
    for (const Member& member : jobs_[run]->TakeUnreachable()) {
      if (Remove(member.incarnation).has_value()) {
        CountMembers();
        environment_.metrics.OnMemberLost(member.role);
        OnLost(member, "it cannot be reached");
      }
    }
  }
}

void CoordinatorCore::OfferMembers() {
  if (taking_up_) {
    return;
  }
  for (const auto& run : jobs_) {
    KeepDrained(*run);
  }
  RemoveUnreachable();
  ForgetOldJobs();
  for (auto& run : jobs_) {
    if (run->restarts() && run->cleared() && !ending_) {
      StartAgain(run);
    }
  }
  // A run of an earlier life may go on though one before it waits, whose end could not be recorded.
  const auto running = std::ranges::find_if(jobs_, [](const auto& run) {
    return !run->waiting() && !(run->released() && !run->restarts());
  });
  int64_t ahead = running == jobs_.end() ? 0 : 1;
  if (running != jobs_.end()) {
    logs_.Turn((*running)->job().id, environment_.clock.Now());
    if ((*running)->HasRoom()) {
      (*running)->TakeIn(FreeMembers(proto::ROLE_WORKER));
    }
    if ((*running)->WantsServers()) {
      (*running)->OfferServers(FreeMembers(proto::ROLE_SERVER));
    }
  }
  for (const auto& run : jobs_) {
    if (!run->waiting()) {
      continue;
    }
    if (ahead == 0) {
      logs_.Turn(run->job().id, environment_.clock.Now());
    }
    ahead == 0 ? Offer(*run) : run->Queue(ahead);
    ++ahead;
  }
}

void CoordinatorCore::Offer(JobRun& run) {
  std::vector<Member> servers = FreeMembers(proto::ROLE_SERVER);
  std::vector<Member> workers = FreeMembers(proto::ROLE_WORKER);
  if (run.job().servers == 0) {
    // Counts that the job leaves open: those that are there, one at least.
    const plan::ClusterOptions& cluster = run.job().job.cluster;
    run.Take(cluster.servers > 0 ? cluster.servers : std::max<int64_t>(1, std::ssize(servers)),
             WantedWorkers(run.job(), workers));
    Prepare(run.job().job);
  }
  run.Offer(std::move(servers), std::move(workers));
}

absl::StatusOr<proto::ReadLogReply> CoordinatorCore::ReadLog(
    const proto::ReadLogRequest& request) const {
  SHOAL_ASSIGN_OR_RETURN(const JobRun* run, FindOrNewest(request.job_id()));
  proto::ReadLogReply reply = logs_.Read(run->job().id, request.after_line());
  reply.set_over(run->over() && !run->restarts());
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
    job.set_over(run->over() && !run->restarts());
  }
  return reply;
}

}  // namespace shoal::server
